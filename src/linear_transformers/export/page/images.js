"use strict";

// A digit is completed while one draws its upper half.

const COMPLETIONS = 6;
const BRUSH = 1 / 24; // the radius of a stroke, of the image's width: that of handwritten digits
const THINNEST = 0.6; // of a pixel
const FADED = 70; // the opacity, of 255, of what the last drawing was completed by
const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

// A canvas whose pixels are those of the model.
class Sheet {
  constructor(canvas, shape) {
    canvas.width = shape.width;
    canvas.height = shape.height;
    this.shape = shape;
    this.context = canvas.getContext("2d");
    this.image = this.context.createImageData(shape.width, shape.height);
  }

  // Set a value of the sequence; high values are bright.
  put(place, value) {
    const { channels, num_levels: levels } = this.shape;
    const brightness = (255 * value) / (levels - 1), channel = place % channels;
    const first = 4 * ((place - channel) / channels);
    if (channels === 1) this.image.data.fill(brightness, first, first + 3);
    else this.image.data[first + channel] = brightness;
    this.image.data[first + 3] = 255;
  }

  // Fade what was drawn, from a row on: it goes as soon as it is drawn anew.
  fade(row) {
    const { data } = this.image;
    for (let at = 4 * row * this.shape.width + 3; at < data.length; at += 4)
      data[at] = Math.min(data[at], FADED);
  }

  show() {
    this.context.putImageData(this.image, 0, 0);
  }
}

// A stroke of ink over an image. It covers a pixel as often as it likes, and no more than once.
class Stroke {
  constructor(pixels, shape, ink) {
    this.pixels = pixels;
    this.shape = shape;
    this.ink = ink;
    this.before = pixels.slice();
    this.coverage = new Float32Array(shape.height * shape.width);
    this.radius = Math.max(THINNEST, BRUSH * shape.width);
  }

  // Draw a line between two points, in pixels. Returns the first row that changed.
  line(from, to) {
    const { width, height, channels } = this.shape;
    let first = height;
    for (let pixel = 0; pixel < this.coverage.length; ++pixel) {
      const center = { x: (pixel % width) + 0.5, y: Math.floor(pixel / width) + 0.5 };
      const coverage = Math.min(this.radius + 0.5 - distance(center, from, to), 1);
      if (coverage <= this.coverage[pixel]) continue;
      this.coverage[pixel] = coverage;
      first = Math.min(first, Math.floor(pixel / width));
      for (let place = pixel * channels; place < (pixel + 1) * channels; ++place) {
        const change = this.ink[place % channels] - this.before[place];
        this.pixels[place] = Math.round(this.before[place] + change * coverage);
      }
    }
    return first;
  }
}

// The distance of a point from a line between two others.
function distance(point, from, to) {
  const x = to.x - from.x, y = to.y - from.y;
  const along = ((point.x - from.x) * x + (point.y - from.y) * y) / (x * x + y * y || 1);
  const share = Math.min(Math.max(along, 0), 1);
  return Math.hypot(point.x - from.x - share * x, point.y - from.y - share * y);
}

class ImagePage {
  constructor(engine) {
    this.engine = engine;
    this.shape = engine.model.shape;
    this.row = this.shape.width * this.shape.channels; // values of a row
    this.length = this.shape.height * this.row;
    this.pixels = new Int32Array(this.length);
    this.prefixes = []; // what was read with 0, 1, 2 ... given rows
    this.read = 0; // the positions of the longest sequence
    this.seed = 0;
    this.example = -1;
    this.cursor = { row: 0, column: 0 };
    this.work = new Work();
    this.memory = new Memory(engine);
    this.drawing = new Sheet(byId("drawing"), this.shape);
    this.completions = Array.from({ length: COMPLETIONS }, (_, i) => this.sheet(i));
    this.listen();
    this.follow(byId("drawing"));
    if (engine.model.examples.length) this.next();
    else this.changed(0);
  }

  sheet(number) {
    const canvas = document.createElement("canvas");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `Completion ${number + 1}`);
    const sheet = document.createElement("div");
    sheet.className = "sheet";
    sheet.append(canvas);
    byId("completions").append(sheet);
    return new Sheet(canvas, this.shape);
  }

  get given() {
    return Number(this.rows.value);
  }

  // Of the colour that is chosen; in grey, as bright as can be.
  get ink() {
    const { channels, num_levels: levels } = this.shape;
    if (channels === 1) return [levels - 1];
    const parts = byId("colour").value.match(/[0-9a-f]{2}/gi);
    return parts.map((part) => Math.round((parseInt(part, 16) / 255) * (levels - 1)));
  }

  listen() {
    const { height, channels } = this.shape;
    byId("rows").max = height;
    byId("rows").value = Math.floor(height / 2);
    this.rows = slider("rows", (value) => `${value} of ${height}`, () => this.restart());
    this.temperature = slider("temperature", (x) => x.toFixed(2), () => this.restart());
    byId("colour-field").hidden = channels === 1;
    byId("example").hidden = !this.engine.model.examples.length;
    byId("example").addEventListener("click", () => this.next());
    byId("clear").addEventListener("click", () => this.load(new Int32Array(this.length)));
    byId("again").addEventListener("click", () => {
      this.seed += 1;
      this.restart();
    });
  }

  // Follow the pointer and the keys over the drawing.
  follow(canvas) {
    let pointer = null, stroke = null, last = null;
    const draw = (event) => {
      const box = canvas.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * this.shape.width;
      const y = ((event.clientY - box.top) / box.height) * this.shape.height;
      const row = stroke.line(last ?? { x, y }, { x, y });
      last = { x, y };
      return row;
    };
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button || pointer !== null) return;
      pointer = event.pointerId;
      last = null;
      stroke = new Stroke(this.pixels, this.shape, this.ink);
      this.changed(draw(event));
    });
    // Of the window: a stroke may leave the drawing and come back.
    window.addEventListener("pointermove", (event) => {
      if (event.pointerId !== pointer) return;
      const passed = event.getCoalescedEvents?.() ?? [];
      this.changed(Math.min(...(passed.length ? passed : [event]).map(draw)));
    });
    for (const end of ["pointerup", "pointercancel"])
      window.addEventListener(end, (event) => {
        if (event.pointerId === pointer) pointer = null;
      });
    canvas.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.altKey || event.metaKey) return;
      if (event.key in ARROWS) this.move(...ARROWS[event.key]);
      else if (event.key === " " || event.key === "Enter") this.toggle();
      else return;
      event.preventDefault();
    });
    this.move(0, 0);
  }

  move(rows, columns) {
    const { height, width } = this.shape;
    const row = Math.min(Math.max(this.cursor.row + rows, 0), height - 1);
    const column = Math.min(Math.max(this.cursor.column + columns, 0), width - 1);
    this.cursor = { row, column };
    const at = { left: column / width, top: row / height, width: 1 / width, height: 1 / height };
    for (const [side, share] of Object.entries(at))
      byId("cursor").style[side] = `${100 * share}%`;
    if (rows || columns) this.speak();
  }

  // Paint the pixel at the cursor, or clear it.
  toggle() {
    const { row, column } = this.cursor, { channels } = this.shape;
    const first = row * this.row + column * channels, ink = this.ink;
    const isPainted = ink.every((level, channel) => this.pixels[first + channel] === level);
    for (let i = 0; i < channels; ++i) this.pixels[first + i] = isPainted ? 0 : ink[i];
    this.changed(row);
    this.speak();
  }

  speak() {
    const { row, column } = this.cursor, { channels } = this.shape;
    const values = this.pixels.slice(row * this.row + column * channels).slice(0, channels);
    byId("spoken").textContent = `Row ${row + 1}, column ${column + 1}: level ${values.join(" ")}`;
  }

  next() {
    const { examples } = this.engine.model;
    this.example = (this.example + 1) % examples.length;
    this.load(Int32Array.from(examples[this.example]));
  }

  load(pixels) {
    this.pixels.set(pixels);
    this.changed(0);
  }

  // The drawing changed from a row on: what was read of the rows above it stays as it is.
  changed(row) {
    this.prefixes.length = Math.min(this.prefixes.length, row + 1);
    this.pixels.forEach((value, place) => this.drawing.put(place, value));
    this.drawing.show();
    if (row < this.given || !this.prefixes.length) this.restart();
  }

  restart() {
    const { given } = this, { height } = this.shape;
    document.body.style.setProperty("--given", `${(100 * given) / height}%`);
    for (const sheet of this.completions) {
      for (let place = 0; place < given * this.row; ++place) sheet.put(place, this.pixels[place]);
      sheet.fade(given);
    }
    this.say("working", "Drawing \u2026");
    const begin = performance.now();
    const job = this.complete(given, Number(this.temperature.value), this.seed);
    this.work.start(job, (isDone) => {
      for (const sheet of this.completions) sheet.show();
      this.memory.show(this.read, this.length);
      if (isDone) this.finished(given, performance.now() - begin);
    });
  }

  finished(given, milliseconds) {
    const count = COMPLETIONS * (this.length - given * this.row);
    const drawn = `${counted(count)} ${this.shape.channels === 1 ? "pixels" : "values"}`;
    const time = `${counted(Math.round(milliseconds))} ms`;
    const text = `${drawn} in ${time}, of ${COMPLETIONS} forks of one state.`;
    this.say("done", count ? text : "Nothing is left to draw.");
  }

  say(phase, text) {
    document.body.dataset.phase = phase;
    if (byId("status").textContent !== text) byId("status").textContent = text;
  }

  // Draw what follows the given rows, all completions side by side: forks of one state.
  *complete(given, temperature, seed) {
    if (given === this.shape.height) return;
    const { engine } = this;
    const start = yield* this.prefix(given);
    const forks = this.completions.map(() => fork(engine, start));
    for (let place = given * this.row; place < this.length; ++place) {
      this.read = place + 1;
      for (const [number, each] of forks.entries()) {
        const noise = [0, 1].map((i) => uniform(seed, number, place, i));
        const value = engine.draw(each.parameters, noise, temperature);
        this.completions[number].put(place, value);
        if (place + 1 < this.length) each.parameters = engine.step(value, each.state);
        yield;
      }
    }
  }

  // What was read with so many given rows, from the last row on that was read before.
  *prefix(given) {
    const { engine, prefixes } = this;
    if (!prefixes.length) {
      const state = engine.start();
      prefixes.push({ state, parameters: engine.step(engine.model.start_token, state) });
    }
    while (prefixes.length <= given) {
      const row = prefixes.length - 1, next = fork(engine, prefixes[row]);
      for (let place = row * this.row; place < (row + 1) * this.row; ++place) {
        next.parameters = engine.step(this.pixels[place], next.state);
        this.read = next.state.position;
        yield;
      }
      prefixes.push(next);
    }
    return prefixes[given];
  }
}

const fork = (engine, { state, parameters }) => ({ state: engine.fork(state), parameters });

const page = new ImagePage(loadEngine());
