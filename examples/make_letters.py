"""Write letters.csv: made-up letters of made-up patients, for trying commands on a file of one's own."""

import csv
import random
from pathlib import Path

PATIENTS, LETTERS = 140, 420
OPENINGS = ("Dear team,", "To the clinic,", "Hello,", "Good morning,", "To whom it may concern,")
SUBJECTS = ("the bill for my blood test", "the physiotherapy invoice", "my travel costs", "the charge for the X-ray")
BODIES = {
    "refunded": (
        "I was charged twice for {0} and enclose both receipts.",
        "you took the money for {0} although my insurer had already paid it.",
        "the amount for {0} is higher than the price you quoted me in writing.",
    ),
    "declined": (
        "I would like {0} waived because I missed the deadline to cancel.",
        "I do not see why I should pay {0}, as I did not like the waiting time.",
        "please drop {0}; I lost the letter that explained it.",
    ),
    "pending": (
        "could you tell me when I will hear about {0}, which I asked about weeks ago?",
        "I am still waiting for an answer about {0} and have sent the forms you wanted.",
        "you wrote that {0} is being looked into; please let me know how it stands.",
    ),
}
CLOSINGS = ("Kind regards", "Thank you for your help", "With best wishes", "I look forward to your reply")


def main() -> None:
    """Write the file beside this script; the same letters every time."""
    draw = random.Random(14)
    with (Path(__file__).parent / "letters.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["patient_id", "body", "outcome"])
        for number in range(LETTERS):
            outcome = draw.choice(tuple(BODIES))
            said = draw.choice(BODIES[outcome]).format(draw.choice(SUBJECTS))
            visit = (
                f"My visit was on {draw.randint(1, 28)}.{draw.randint(1, 12)}., reference {draw.randint(1000, 9999)}."
            )
            body = f"{draw.choice(OPENINGS)} {said} {visit} {draw.choice(CLOSINGS)}."
            writer.writerow([f"p{number % PATIENTS:03d}", body, outcome])


if __name__ == "__main__":
    main()
