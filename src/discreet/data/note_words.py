"""The words that the clinic notes are made of: names, departments, complaints, findings, plans; all invented here.

A concept is a tuple of ways to say the same thing, filed under the departments it points to: "C" alone points to
cardiology, "CG" to cardiology or gastroenterology, "CGNO" to any. `{side}` becomes left or right. A complaint that ends
in a full stop takes no "for two days" after it.
"""

from __future__ import annotations

Concept = tuple[str, ...]
Concepts = dict[str, tuple[Concept, ...]]


def _listed(text: str) -> tuple[str, ...]:
    return tuple(text.split())


DEPARTMENTS = {"C": "cardiology", "G": "gastroenterology", "N": "neurology", "O": "orthopaedics"}

WOMEN = _listed(
    """
    Adaeze Agnes Alma Amelia Amina Anneke Asha Beatriz Bridget Camille Carmen Chiara Clara Dagmar Daniela Delphine
    Edith Eleni Elsa Emiko Esther Farida Fatima Fiona Freya Gloria Greta Hana Harriet Ines Ingrid Irena Isla Jolanta
    Joyce Judith Kavita Laila Leonie Lucia Magda Mairead Malin Marta Mei Miriam Nadia Naomi Ngozi Nora Olga Paloma
    Petra Priya Rosa Ruth Saoirse Selma Shreya Sigrid Sofia Tamar Teresa Thandi Ursula Vera Wanda Yasmin Yuki Zofia
    """
)

MEN = _listed(
    """
    Aaron Abdul Albert Alejandro Anton Arjun Arthur Bakary Bela Benedikt Bruno Callum Cedric Chidi Conrad Cyril
    Dario Declan Dmitri Edgar Elias Emeka Enzo Farhan Felix Finn Gareth Georg Hamid Hector Henrik Hiroshi Hugo
    Ibrahim Igor Ivo Jakub Jamal Jonas Joaquin Karim Kenji Kwame Lars Leon Luca Magnus Marek Mateus Milan Mohan
    Nabil Niall Oscar Otto Pavel Piotr Rafael Rashid Rohan Ruben Samir Sergei Stefan Tariq Teodor Tomas Viktor
    Walter Yusuf
    """
)

SURNAMES = _listed(
    """
    Abara Adeyemi Almeida Andersen Aoki Bakker Banerjee Barros Bergstrom Bianchi Bielski Blackwood Bouchard Brandt
    Brennan Calloway Carvalho Castellano Chaudhry Cohen Costa Crawley Dahl Danso Delacroix Demir Devlin Diallo
    Dobrev Drummond Eklund Erikson Escobar Eze Farrell Ferrante Fischer Fitzgerald Fontaine Fraser Fujita Gallagher
    Garrido Ghosh Greaves Grigoryan Haddad Halvorsen Hargreaves Hashemi Hedlund Horvath Hussein Ibarra Iyer
    Jablonski Jansen Jimenez Kamau Kapoor Karlsen Kaya Keller Kovacs Kowalczyk Kruger Kuznetsov Lachance Lambert
    Larkin Lindholm Lombardi Lopes Lundgren Macleod Maduro Mahmood Makinen Malhotra Marchetti Mbeki McAllister
    Mendoza Mikkelsen Moreau Mwangi Nakamura Nasser Navarro Nguyen Novak Nwosu Obeng Okafor Okonkwo Olsen Ortega
    Osei Ozturk Papadakis Pellegrini Pereira Petrov Popescu Quigley Quintero Rahman Rasmussen Reddy Renaud Ricci
    Romano Rosen Rossi Rybak Saito Salazar Sandoval Santoro Sato Schneider Sharma Silveira Sinclair Sokolov Sorensen
    Stavros Sullivan Svensson Takeda Tanaka Thornbury Toivonen Tremblay Ueda Vasquez Venter Vidal Vogel Volkov
    Wachira Walczak Weber Whitlock Winther Yamada Yilmaz Zapata Zielinski
    """
)

JOBS = """baker,bus driver,carpenter,retired teacher,nurse,farmer,student,accountant,chef,electrician,librarian,postman,
shopkeeper,software developer,taxi driver,violinist,warehouse worker,gardener,tailor,civil servant,bricklayer,cleaner,
retired miner,translator,hairdresser,lorry driver,pharmacist,receptionist,plumber,journalist""".replace("\n", "").split(
    ","
)

COMPLAINTS: Concepts = {
    "C": (
        ("tightness across the chest when climbing stairs", "chest pressure on exertion that eases with rest"),
        ("palpitations at night", "a racing, irregular heartbeat in the evenings"),
        ("swollen ankles and breathlessness lying flat", "ankle swelling and needing three pillows to sleep"),
        ("skipped heartbeats several times a day", "a fluttering feeling behind the ribs"),
        ("breathlessness on one flight of stairs", "getting out of breath on gentle hills"),
        ("home blood pressure above 170", "high blood pressure despite two tablets"),
        ("a collapse while running for a bus.", "a sudden blackout during exercise."),
        ("a pulse that races after very little effort", "a pounding pulse on the stairs"),
    ),
    "G": (
        ("burning behind the breastbone after meals", "heartburn after spicy food"),
        ("loose stools six times a day", "frequent watery diarrhoea"),
        ("bright red bleeding with bowel movements", "blood on the toilet paper"),
        ("colicky belly pain with bloating", "cramps low in the abdomen, eased by a bowel movement"),
        ("food sticking halfway down", "trouble swallowing bread and meat"),
        ("yellow eyes and dark urine", "jaundice with itching"),
        ("gas and swelling of the belly after dairy", "bloating whenever milk is taken"),
        ("constipation despite laxatives", "hard stools only twice a week"),
    ),
    "N": (
        ("one-sided headaches with flashing lights", "migraine with zigzag lines in the vision"),
        ("a tremor of the {side} hand at rest", "shaking of the {side} hand when sitting still"),
        ("a witnessed convulsion with tongue biting.", "a fit lasting two minutes."),
        ("forgetting names and repeating questions", "memory lapses noticed by the family"),
        ("slurred speech for half an hour.", "a drooping face that recovered within the hour."),
        ("double vision late in the day", "seeing double when tired"),
        ("small handwriting and slow movements", "a shuffling walk and a soft voice"),
        ("electric jolts along the jaw", "shooting pain in the {side} cheek when chewing"),
    ),
    "O": (
        ("{side} knee pain with clicking on stairs", "a {side} knee that locks and gives way"),
        ("{side} shoulder pain on reaching overhead", "a stiff {side} shoulder that aches at night"),
        ("a swollen wrist after a fall on ice.", "wrist pain after landing on an outstretched hand"),
        ("heel pain with the first morning steps", "a sore heel on getting out of bed"),
        ("{side} hip pain that limits walking", "groin pain and a limp from a worn hip"),
        ("a twisted ankle that will not settle", "an ankle still swollen weeks after a sprain."),
        ("a finger that catches when bending", "a thumb that clicks painfully"),
        ("elbow pain from gripping tools", "a tender outer elbow when lifting"),
    ),
    "CG": (
        ("chest discomfort after heavy meals", "pain in the middle of the chest after supper"),
        ("upper abdominal pain with sweating", "pain below the breastbone and cold sweats"),
        ("nausea with a heavy feeling in the chest", "queasiness and an uneasy chest"),
    ),
    "CN": (
        ("light-headedness on standing up", "dizzy spells on getting out of bed"),
        ("a brief loss of consciousness.", "fainting in a warm room."),
        ("a grey curtain before the eyes, then weakness.", "sudden weakness that passed in minutes."),
    ),
    "CO": (
        ("{side} arm ache on carrying bags", "aching in the {side} arm after lifting"),
        ("pain between the shoulder blades", "an ache across the upper back"),
        ("calf pain on walking that eases with rest", "cramping calves on longer walks"),
    ),
    "GN": (
        ("vomiting every morning", "early nausea and retching"),
        ("coughing when drinking", "trouble swallowing liquids"),
        ("poor appetite and tingling feet", "weight loss with burning feet"),
    ),
    "GO": (
        ("{side} flank pain on bending", "an ache under the {side} ribs on turning"),
        ("groin pain on coughing", "a dragging feeling in the {side} groin"),
        ("an upset stomach from painkillers", "stomach ache since starting ibuprofen."),
    ),
    "NO": (
        ("low back pain running down the {side} leg", "shooting pain from the back to the {side} foot"),
        ("tingling in the {side} hand at night", "numb fingers on the {side} side"),
        ("a stiff neck with a tingling arm", "neck pain spreading to the {side} arm"),
        ("unsteady walking and two falls.", "three falls since the spring."),
    ),
    "CGNO": (
        ("tiredness and poor sleep", "constant fatigue"),
        ("feeling generally unwell", "a run-down feeling"),
        ("questions about the tablets.", "worries about side effects."),
        ("test results to discuss.", "a wish to hear the results."),
        ("symptoms that come and go", "the same trouble as last time."),
        ("slow recovery since discharge.", "little progress since the hospital stay."),
    ),
}

FINDINGS: Concepts = {
    "C": (
        ("ECG shows atrial fibrillation", "The tracing shows an irregular rhythm"),
        ("A soft murmur is heard", "There is a systolic murmur"),
        ("Echo shows a weak left ventricle", "Ejection fraction is 40 percent"),
        ("The stress test is positive", "ST changes appear on the treadmill"),
    ),
    "G": (
        ("Gastroscopy shows mild oesophagitis", "The gullet is inflamed on endoscopy"),
        ("Calprotectin is raised", "Stool markers suggest inflammation"),
        ("Liver enzymes are twice normal", "Liver tests are abnormal"),
        ("Ultrasound shows gallstones", "Stones are seen in the gallbladder"),
    ),
    "N": (
        ("Reflexes are brisk on the {side}", "The {side} plantar response is abnormal"),
        ("Brain MRI shows small white-matter lesions", "The head scan shows old small strokes"),
        ("EEG shows sharp waves", "The EEG is abnormal"),
        ("The {side} wrist shows cogwheel rigidity", "Arm swing is reduced on the {side}"),
    ),
    "O": (
        ("X-ray shows loss of joint space", "The joint is worn on the films"),
        ("The joint line is tender and swollen", "There is fluid in the joint"),
        ("MRI shows a torn meniscus", "The scan shows a ligament tear"),
        ("Rotation is limited by pain", "Movement stops at 60 degrees"),
    ),
    "CG": (("Haemoglobin is low at 9", "There is iron-deficiency anaemia"),),
    "CN": (("Blood pressure drops on standing", "Standing pressure falls by thirty"),),
    "CO": (("The calf is firm and tender", "One calf is larger than the other"),),
    "GN": (("Vitamin B12 is low", "B12 is well below range"),),
    "GO": (("The lower ribs are tender", "Pressing the flank is sore"),),
    "NO": (
        ("Straight leg raise is painful on the {side}", "The {side} ankle jerk is absent"),
        ("Grip is weak on the {side}", "The {side} thumb muscles are thin"),
    ),
    "CGNO": (
        ("Vital signs are normal", "Observations are stable"),
        ("Examination is unremarkable", "Nothing abnormal on examination"),
        ("Inflammatory markers are slightly raised", "CRP is a little high"),
        ("Weight is down three kilos", "Three kilos lighter than last visit"),
        ("Blood tests are pending", "Results are awaited"),
        ("Looks well", "In no distress today"),
    ),
}

PLANS: Concepts = {
    "C": (
        ("Start bisoprolol", "Begin a low-dose beta blocker"),
        ("Holter monitor for 24 hours", "Wear a heart monitor for a day"),
        ("Coronary angiogram booked", "Listed for angiography"),
        ("Increase ramipril and repeat potassium", "Raise the ramipril dose"),
    ),
    "G": (
        ("Start omeprazole", "Begin an acid blocker"),
        ("Colonoscopy next week", "Listed for colonoscopy"),
        ("Low-FODMAP diet for a month", "Try a diet without dairy"),
        ("Breath test for Helicobacter", "Send a stool sample"),
    ),
    "N": (
        ("Sumatriptan for attacks", "Start topiramate at night"),
        ("EEG and brain MRI requested", "Brain scan requested"),
        ("Trial of levodopa", "Start levodopa slowly"),
        ("Lumbar puncture discussed", "Memory clinic referral"),
    ),
    "O": (
        ("Steroid injection given", "Injected the joint today"),
        ("Listed for joint replacement", "Surgery date to follow"),
        ("Splint for six weeks", "Cast check in ten days"),
        ("Arthroscopy booked", "Keyhole surgery discussed"),
    ),
    "CG": (("Stop aspirin and add pantoprazole", "Pause aspirin"),),
    "CN": (("No driving until reviewed", "Tilt-table test requested"),),
    "CO": (("Compression stockings", "Leg scan to exclude a clot"),),
    "GN": (("Anti-sickness tablets and dietician", "Vitamin injections for six weeks"),),
    "GO": (("Swap ibuprofen for paracetamol", "Stop the anti-inflammatory"),),
    "NO": (
        ("Nerve conduction studies", "Nerve tests requested"),
        ("Physiotherapy twice weekly", "Refer to physiotherapy"),
    ),
    "CGNO": (
        ("Review in {weeks} weeks", "See again in {weeks} weeks"),
        ("Discharge to family doctor", "Back to the family doctor"),
        ("Repeat blood tests next month", "Bloods again next month"),
        ("Keep a symptom diary", "Asked to note each episode"),
        ("Call if worse", "Return if it worsens"),
        ("Continue current treatment", "No change to medication"),
    ),
}

CONDITIONS = {
    "C": ("atrial fibrillation", "hypertension", "a heart attack", "a pacemaker"),
    "G": ("reflux", "coeliac disease", "Crohn's disease", "gallstones"),
    "N": ("migraine", "epilepsy", "a small stroke", "neuropathy"),
    "O": ("osteoarthritis", "a hip replacement", "a wrist fracture", "gout"),
}

DURATIONS = (
    "for two days",
    "for a week",
    "for three weeks",
    "for two months",
    "since Sunday",
    "since the summer",
    "on and off for a year",
    "for some time",
    "since the last visit",
    "for five days",
)

MONTHS = _listed("January February March April May June July August September October November December")
