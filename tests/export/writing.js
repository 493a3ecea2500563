"use strict";

// Use a page of texts as somebody who reads does, and leave what was seen in the document.

const at = (id) => document.getElementById(id);
const until = async (condition) => {
  while (!condition()) await new Promise((go) => setTimeout(go, 5));
};
const seen = () => ({
  phase: document.body.dataset.phase,
  given: at("given").textContent,
  written: at("written").textContent,
  status: at("status").textContent,
  rate: at("rate").textContent,
  button: at("go").textContent,
  state: at("state-bytes").textContent,
  cache: at("cache-bytes").textContent,
  position: page.read?.state.position ?? 0,
});

function begin(text) {
  at("beginning").value = text;
  at("beginning").dispatchEvent(new Event("input"));
}

(async () => {
  const found = { errors };
  const written = () => at("written").textContent.length;
  begin(BEGINNING);
  found.ready = seen();
  at("go").click();
  found.started = seen();
  await until(() => written() >= 20);
  at("go").click();
  found.stopped = seen();
  at("go").click();
  await until(() => written() > found.stopped.written.length);
  at("go").click();
  found.further = seen();
  // The text ends where the model wants it to.
  const { draw } = page.engine;
  page.engine.draw = () => 1;
  at("go").click();
  await until(() => document.body.dataset.phase === "ended");
  found.ended = seen();
  if (page.tokenizer.noun === "byte") {
    // It is stopped within a character, and another text begins.
    page.engine.draw = () => 3 + 0xc3;
    begin("a");
    at("go").click();
    await until(() => page.read?.state.position > 4);
    at("go").click();
    page.engine.draw = () => 3 + 97;
    at("again").click();
    await until(() => written() >= 4);
    at("go").click();
    found.again = seen();
  }
  page.engine.draw = draw;
  const { max_length: longest } = page.engine.model.positions;
  page.engine.model.positions.max_length = 4;
  begin("abcd");
  at("go").click();
  found.full = seen();
  page.engine.model.positions.max_length = longest;
  begin("\u2603");
  at("go").click();
  found.unknown = seen();
  page.work.stop(); // a browser does not end while there is work
  const summary = document.createElement("pre");
  summary.id = "summary";
  summary.textContent = JSON.stringify(found);
  document.body.append(summary);
})();
