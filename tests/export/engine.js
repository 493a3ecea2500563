"use strict";

// Run the engine of a page on what a test asks for in JSON, and print what it makes.
//   node engine.js path/to/page/engine.js page.html < asked.json

const { readFileSync } = require("node:fs");

const [enginePath, pagePath] = process.argv.slice(2);
const { Engine, bytesOf, uniform } = require(enginePath);
const page = readFileSync(pagePath, "utf8");
const inPage = (id) => page.match(new RegExp(`<script[^>]* id="${id}">([^<]*)</script>`))[1];
const engine = new Engine(JSON.parse(inPage("model")), bytesOf(inPage("weights")).buffer);

const read = (tokens, state) => tokens.map((token) => Array.from(engine.step(token, state)));

const makers = {
  steps: ({ tokens }) => read(tokens, engine.start()),
  // Forks of one state go on in turns, and so does the state itself.
  forks: ({ before, after }) => {
    const state = engine.start();
    read(before, state);
    const states = [engine.fork(state), state, engine.fork(state)];
    const parameters = states.map(() => []);
    after[0].forEach((_, i) =>
      states.forEach((each, fork) => parameters[fork].push(...read([after[fork][i]], each))),
    );
    return parameters;
  },
  draws: ({ parameters, noise, temperature }) =>
    parameters.map((each, i) => engine.draw(Float64Array.from(each), noise[i], temperature)),
  bytes: ({ length }) => [engine.stateBytes(), engine.cacheBytes(length)],
  uniform: ({ count }) => Array.from({ length: count }, (_, i) => uniform(i % 3, i % 7, i, i % 2)),
};

const asked = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(makers[asked.make](asked)));
