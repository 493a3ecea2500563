"use strict";

// What the pages of images and of texts have in common.

const SLICE = 12; // milliseconds of work between two looks at the user
const LONGEST = 500; // steps of a slice: clocks may be coarse

const byId = (id) => document.getElementById(id);

const counted = (number) => number.toLocaleString("en");

function loadEngine() {
  const model = JSON.parse(byId("model").textContent);
  return new Engine(model, bytesOf(byId("weights").textContent).buffer);
}

// Long work in slices: a generator is resumed until it is done or another one is started.
class Work {
  // onSlice is called after each slice, with whether the work is done.
  start(generator, onSlice) {
    this.stop();
    const slice = () => {
      const end = performance.now() + SLICE;
      let done, steps = 0;
      do done = generator.next().done;
      while (!done && ++steps < LONGEST && performance.now() < end);
      this.timer = done ? null : setTimeout(slice, 0);
      onSlice(done);
    };
    this.timer = setTimeout(slice, 0);
  }

  stop() {
    clearTimeout(this.timer);
    this.timer = null;
  }
}

// The two numbers, and their bars on one scale.
class Memory {
  constructor(engine) {
    this.engine = engine;
    const bytes = counted(engine.stateBytes());
    byId("state-bytes").textContent = bytes;
    for (const element of document.querySelectorAll("[data-state]")) element.textContent = bytes;
    this.show(0, 0);
  }

  // Show what softmax attention would keep of `length` positions. The scale fits `longest`.
  show(length, longest) {
    const state = this.engine.stateBytes(), cache = this.engine.cacheBytes(length);
    const scale = Math.max(state, this.engine.cacheBytes(longest));
    byId("cache-bytes").textContent = counted(cache);
    byId("state-bar").style.width = `${(100 * state) / scale}%`;
    byId("cache-bar").style.width = `${(100 * cache) / scale}%`;
  }
}

// A slider whose value is shown beside it.
function slider(id, write, onChange) {
  const input = byId(id), shown = byId(`${id}-shown`);
  const show = () => (shown.textContent = write(Number(input.value)));
  input.addEventListener("input", () => {
    show();
    onChange();
  });
  show();
  return input;
}
