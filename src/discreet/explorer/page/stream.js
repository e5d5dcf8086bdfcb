// One attack on the server: send a request, and read lines of JSON until it is done.
// Calls `tell` with every message before the last, and returns the last: done with a reading, superseded, cancelled, or
// refused with an error.
export const stream = async (asked, key, signal, tell) => {
  const answer = await fetch("/v1/readings", {
    method: "POST",
    headers: { "content-type": "application/json", "x-discreet-key": key },
    body: JSON.stringify(asked),
    signal,
  });
  if (!answer.ok) return { state: "refused", error: (await answer.json()).error };
  const reader = answer.body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return { state: "refused", error: "Expected a result, but the connection was closed. Is the command still running?" };
    rest += decoder.decode(value, { stream: true });
    const lines = rest.split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const message = JSON.parse(line);
      if (message.state === "waiting" || message.state === "running") tell(message);
      else return message;
    }
  }
};
