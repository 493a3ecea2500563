"use strict";

// A text goes on from its beginning.

const START = 0, END = 1, UNKNOWN = 2, SPECIAL = 3; // see `data/text/tokens.py`
const RATE_SECONDS = 1; // what a rate is the mean over

// Texts as tokens. Bytes are held back until they are a character.
const TOKENIZERS = {
  bytes: () => {
    const decoder = new TextDecoder();
    const read = (bytes, stream) => decoder.decode(Uint8Array.from(bytes), { stream });
    return {
      noun: "byte",
      encode: (text) => Array.from(new TextEncoder().encode(text), (byte) => byte + SPECIAL),
      decode: (token) => read([token - SPECIAL], true),
      end: () => read([], false),
    };
  },
  characters: (vocabulary) => ({
    noun: "character",
    encode: (text) =>
      Array.from(text, (character) => {
        const index = vocabulary.indexOf(character);
        if (index < 0) throw new RangeError(`The model has never seen \u201c${character}\u201d.`);
        return index + SPECIAL;
      }),
    decode: (token) => vocabulary[token - SPECIAL],
    end: () => "",
  }),
};

class TextPage {
  constructor(engine) {
    const { tokens, vocabulary } = engine.model.shape;
    this.engine = engine;
    this.tokenizer = TOKENIZERS[tokens](vocabulary);
    this.work = new Work();
    this.memory = new Memory(engine);
    this.seed = 0;
    this.temperature = slider("temperature", (x) => x.toFixed(2), () => {});
    document.querySelector("[data-token]").textContent = this.tokenizer.noun;
    this.text = byId("text");
    byId("go").addEventListener("click", () => (this.goesOn ? this.stop() : this.go()));
    byId("again").addEventListener("click", () => {
      this.seed += 1;
      this.begin();
      this.go();
    });
    byId("beginning").addEventListener("input", () => this.begin());
    this.begin();
  }

  // Forget the text; the beginning may be another one.
  begin() {
    this.read = null; // what was read so far
    this.waiting = []; // what is to be read before anything is written
    this.fresh = ""; // what is not shown yet
    this.tokenizer.end(); // half a character of the last text
    byId("given").textContent = byId("beginning").value;
    byId("written").replaceChildren(document.createTextNode(""));
    this.memory.show(0, 0);
    byId("rate").textContent = "";
    this.halt("ready", "");
    byId("go").textContent = "Start";
    byId("go").disabled = false;
  }

  go() {
    try {
      if (!this.read) this.waiting = this.encoded(byId("beginning").value);
    } catch (error) {
      return this.halt("ended", error.message);
    }
    this.say("working", "Writing \u2026");
    byId("go").textContent = "Stop";
    const rate = new Rate();
    this.work.start(this.write(), (isDone) => {
      rate.add(this.show());
      if (isDone) this.end();
      else byId("rate").textContent = `${counted(rate.perSecond())} characters a second`;
    });
    return undefined;
  }

  // The tokens of a beginning, after which something can be written.
  encoded(text) {
    const tokens = this.tokenizer.encode(text), { noun } = this.tokenizer;
    const most = (this.engine.model.positions.max_length || Infinity) - 1; // the start has one
    if (tokens.length > most)
      throw new RangeError(`The beginning has ${tokens.length} ${noun}s, and the model reads ${most}.`);
    return tokens;
  }

  get goesOn() {
    return document.body.dataset.phase === "working";
  }

  stop() {
    this.halt("stopped", "Stopped.");
    byId("go").textContent = "Go on";
  }

  end() {
    this.fresh += this.tokenizer.end();
    this.show();
    this.halt("ended", this.why);
    byId("go").textContent = "Start";
    byId("go").disabled = true;
  }

  halt(phase, text) {
    this.work.stop();
    this.say(phase, text);
  }

  say(phase, text) {
    document.body.dataset.phase = phase;
    byId("status").textContent = text;
  }

  // Show what was written since the last time. Returns the number of its characters.
  show() {
    const { text, fresh } = this;
    const isAtEnd = text.scrollHeight - text.scrollTop - text.clientHeight < 8;
    byId("written").firstChild.appendData(fresh);
    this.fresh = "";
    if (isAtEnd) text.scrollTop = text.scrollHeight;
    const { position } = this.read.state;
    this.memory.show(position, 2 ** Math.ceil(Math.log2(position))); // the scale doubles
    return Array.from(fresh).length;
  }

  // Read the beginning, then write what follows, until the model ends the text or is stopped.
  *write() {
    const { engine } = this;
    const read = (token) => {
      this.read.parameters = engine.step(token, this.read.state);
    };
    if (!this.read) {
      this.read = { state: engine.start(), parameters: null };
      read(engine.model.start_token);
    }
    while (this.waiting.length) {
      read(this.waiting.shift());
      yield;
    }
    const { max_length: maxLength } = engine.model.positions;
    for (;;) {
      const token = this.draw();
      this.why = "The model ended the text.";
      if (token === END) return;
      this.fresh += this.tokenizer.decode(token);
      this.why = "The model has no more positions.";
      if (this.read.state.position === maxLength) return;
      read(token);
      yield;
    }
  }

  draw() {
    const { parameters, state } = this.read;
    parameters[START] = parameters[UNKNOWN] = -Infinity;
    const noise = [uniform(this.seed, state.position)];
    return this.engine.draw(parameters, noise, Number(this.temperature.value));
  }
}

// The mean of the last seconds.
class Rate {
  constructor() {
    this.counts = [{ at: performance.now(), count: 0 }];
  }

  add(count) {
    const now = performance.now();
    this.counts.push({ at: now, count });
    while (this.counts.length > 2 && now - this.counts[0].at > 1000 * RATE_SECONDS)
      this.counts.shift();
  }

  perSecond() {
    const [first, ...others] = this.counts;
    const seconds = (others.at(-1).at - first.at) / 1000;
    return Math.round(others.reduce((sum, each) => sum + each.count, 0) / (seconds || 1));
  }
}

const page = new TextPage(loadEngine());
