"use strict";

// Use a page of images as somebody who draws does, and leave what was seen in the document.

const STEPS = { count: 0 };
const step = page.engine.step.bind(page.engine);
page.engine.step = (...given) => {
  STEPS.count += 1;
  return step(...given);
};

// A clock that ticks when it is looked at: a slice of work is of a few steps.
let now = 0;
performance.now = () => (now += 1);

const pause = () => new Promise((go) => setTimeout(go, 5));
const canvases = () => [...document.querySelectorAll("canvas")];
const imageOf = (canvas) =>
  Array.from(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data);
const until = async (phase) => {
  while (document.body.dataset.phase !== phase) await pause();
};

function point(type, column, row) {
  const box = canvases()[0].getBoundingClientRect();
  const clientX = box.left + (column / page.shape.width) * box.width;
  const clientY = box.top + (row / page.shape.height) * box.height;
  const options = { clientX, clientY, pointerId: 7, button: 0, bubbles: true, cancelable: true };
  canvases()[0].dispatchEvent(new PointerEvent(type, options));
}

function press(...keys) {
  canvases()[0].focus();
  for (const key of keys)
    canvases()[0].dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
}

function slide(id, value) {
  document.getElementById(id).value = value;
  document.getElementById(id).dispatchEvent(new Event("input"));
}

// What is seen after an action, when all is drawn.
async function seen(action) {
  STEPS.count = 0;
  action();
  const phase = document.body.dataset.phase;
  await until("done");
  return {
    phase,
    steps: STEPS.count,
    values: Array.from(page.pixels),
    images: canvases().map(imageOf),
    status: document.getElementById("status").textContent,
    spoken: document.getElementById("spoken").textContent,
    state: document.getElementById("state-bytes").textContent,
    cache: document.getElementById("cache-bytes").textContent,
  };
}

(async () => {
  const found = { errors };
  found.start = await seen(() => {});
  found.stroke = await seen(() => {
    point("pointerdown", 1.5, 2.95);
    point("pointermove", 3.5, 2.95);
    point("pointerup", 3.5, 2.95);
    point("pointermove", 3.5, 0.5);
  });
  found.below = await seen(() => {
    point("pointerdown", 1.5, 6.5);
    point("pointerup", 1.5, 6.5);
  });
  found.keys = await seen(() => press("ArrowDown", "ArrowRight", "ArrowRight", " ", "Tab"));
  found.erased = await seen(() => press("Enter"));
  found.again = await seen(() => document.getElementById("again").click());
  STEPS.count = 0;
  document.getElementById("again").click();
  while (STEPS.count < 40) await pause();
  found.half = { phase: document.body.dataset.phase, images: canvases().map(imageOf) };
  found.interrupted = await seen(() => document.getElementById("again").click());
  found.everything = await seen(() => slide("rows", page.shape.height));
  found.nothing = await seen(() => slide("rows", 0));
  found.cold = await seen(() => slide("temperature", 0.1));
  found.example = await seen(() => document.getElementById("example").click());
  found.clear = await seen(() => document.getElementById("clear").click());
  const summary = document.createElement("pre");
  summary.id = "summary";
  summary.textContent = JSON.stringify(found);
  document.body.append(summary);
})();
