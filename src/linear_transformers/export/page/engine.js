"use strict";

// One position of a whole stack with linear attention, eqs. 16-20 of Katharopoulos et al. (2020),
// or with the delta rule, eq. 10 of Yang, Kautz and Hatamizadeh (2025).
// It is `kernels/cpp_step.cpp` for a browser. Weights and states are float32, sums are double.
// Names of fields are those of Python: `StepOptions`, `StepMixer`, `StepBlock`.

const FLOAT_BYTES = 4;

// A trained model as a function from a token and a state to the next value's distribution.
// A state is a value: a position and one array of numbers, of a size that no length changes.
class Engine {
  constructor(model, weights) {
    this.model = model;
    const tensors = new Tensors(model.tensors, weights);
    this.tokens = tensors.floats("tokens");
    this.tables = tensors.every("positions", (name) => tensors.floats(name));
    this.layers = tensors.every("blocks", (name) => tensors.block(name));
    this.norm = tensors.norm("norm");
    this.head = tensors.affine("head");

    const { num_heads: heads, key_dim: keyWidth, value_dim: valueWidth } = model.options;
    const { taps, up, down, project_in, project_out } = this.layers[0];
    this.width = this.norm.weight.length;
    this.channels = heads * (2 * keyWidth + valueWidth); // of queries, keys and values
    this.kept = taps ? taps.length / this.channels - 1 : 0; // inputs that a convolution keeps
    // Of a layer's state: matrices, linear attention's sums of keys, inputs of the convolution.
    this.matricesSize = heads * keyWidth * valueWidth;
    this.sumsSize = model.options.attention === "linear" ? heads * keyWidth : 0;
    this.layerSize = this.matricesSize + this.sumsSize + this.kept * this.channels;
    this.hidden = down.inputs;
    // Workspaces: a step allocates its result only.
    const room = (size) => new Float64Array(size);
    this.x = room(this.width);
    this.normed = room(this.width);
    this.projected = room(project_in.outputs);
    this.attended = room(project_out.inputs);
    this.inner = room(up.outputs);
    this.change = room(this.width);
    this.query = room(keyWidth);
    this.key = room(keyWidth);
    this.value = room(valueWidth);
  }

  // The empty state: not even the start token is read.
  start() {
    return { position: 0, numbers: new Float32Array(this.layers.length * this.layerSize) };
  }

  fork(state) {
    return { position: state.position, numbers: state.numbers.slice() };
  }

  // The bytes of a state, the inputs of convolutions included.
  stateBytes() {
    return this.layers.length * this.layerSize * FLOAT_BYTES;
  }

  // The bytes of the keys and values that softmax attention would keep of so many positions.
  cacheBytes(length) {
    return this.layers.length * 2 * this.width * length * FLOAT_BYTES;
  }

  // The parameters of the next value's distribution. The state is updated in place.
  step(token, state) {
    const { x, normed, change } = this;
    const { pre_norm: preNorm, norm_eps: eps } = this.model.options;
    this.embed(token, state.position);
    for (let i = 0; i < this.layers.length; ++i) {
      const layer = this.layers[i];
      if (preNorm) normalize(layer.mixer_norm, x, normed, eps);
      this.mix(layer, preNorm ? normed : x, state.numbers, i * this.layerSize);
      add(change, x);
      if (preNorm) normalize(layer.feedforward_norm, x, normed, eps);
      else normalize(layer.mixer_norm, x, x, eps);
      this.feed(layer, preNorm ? normed : x);
      add(change, x);
      if (!preNorm) normalize(layer.feedforward_norm, x, x, eps);
    }
    normalize(this.norm, x, normed, eps);
    const parameters = new Float64Array(this.head.outputs);
    multiply(this.head, normed, parameters);
    state.position += 1;
    return parameters;
  }

  // The value that uniform noise selects: `ValueDistribution.sample`.
  draw(parameters, noise, temperature) {
    const { kind, num_values: numValues, min_log_scale: minLogScale } = this.model.distribution;
    if (kind === "categorical") return invertCdf(parameters, noise[0], temperature);
    const components = parameters.length / 3;
    const chosen = invertCdf(parameters.subarray(0, components), noise[0], temperature);
    const mean = parameters[components + chosen];
    const logScale = Math.max(parameters[2 * components + chosen], minLogScale);
    // Clamped: noise of 0 would give -infinity.
    const share = Math.min(Math.max(noise[1], 1e-7), 1 - 1e-7);
    const x = mean + Math.exp(logScale) * temperature * Math.log(share / (1 - share));
    const level = roundToEven(((x + 1) / 2) * (numValues - 1));
    return Math.min(Math.max(level, 0), numValues - 1);
  }

  embed(token, position) {
    const { kind, max_length: maxLength, axes } = this.model.positions;
    if (maxLength !== null && position >= maxLength) throw new RangeError("No positions are left.");
    const { x, tokens, tables, width } = this;
    const inputs = kind === "concatenated" ? width / 2 : width;
    for (let i = 0; i < inputs; ++i) x[i] = tokens[token * inputs + i];
    if (kind === "concatenated") x.fill(0, inputs);
    if (kind === "concatenated" || kind === "added") addSinusoids(position, x, width - inputs);
    // One table for each axis, the last one fastest; learned positions have one axis.
    for (let axis = tables.length - 1, rest = position; axis >= 0; --axis) {
      const place = rest % axes[axis];
      rest = (rest - place) / axes[axis];
      for (let i = 0; i < width; ++i) x[i] += tables[axis][place * width + i];
    }
  }

  // The mixer's output, into `change`.
  mix(layer, x, numbers, base) {
    const { channels, projected, attended } = this;
    const { num_heads: heads, output_gate: gate, output_norm_eps: eps } = this.model.options;
    multiply(layer.project_in, x, projected);
    if (layer.taps) this.convolve(layer.taps, numbers, base + this.matricesSize + this.sumsSize);
    for (let head = 0; head < heads; ++head) this.attend(layer, head, numbers, base);
    if (layer.output_norm) normalizeHeads(layer.output_norm, attended, eps);
    for (let i = 0; gate && i < attended.length; ++i) {
      const g = projected[channels + i];
      attended[i] *= sigmoid(g) * (gate === "silu" ? g : 1);
    }
    multiply(layer.project_out, attended, this.change);
  }

  // Queries, keys and values through the short convolution, whose last inputs move on.
  convolve(taps, numbers, first) {
    const { projected, kept, channels } = this;
    for (let i = 0; i < channels; ++i) {
      const input = projected[i];
      let sum = taps[kept * channels + i] * input;
      for (let tap = 0; tap < kept; ++tap) {
        const at = first + tap * channels + i;
        sum += taps[tap * channels + i] * numbers[at];
        numbers[at] = tap + 1 < kept ? numbers[at + channels] : input;
      }
      projected[i] = sum;
    }
  }

  // One head, whose matrix S decays, takes in the position, and is read: S = a S + k v^T, S^T q.
  attend(layer, head, numbers, base) {
    const { projected, attended, query, key, value } = this;
    const { num_heads: heads, attention } = this.model.options;
    const keyWidth = key.length, valueWidth = value.length;
    const q = head * keyWidth, k = heads * keyWidth + q, v = 2 * heads * keyWidth;
    for (let c = 0; c < keyWidth; ++c) [query[c], key[c]] = [projected[q + c], projected[k + c]];
    const first = head * valueWidth, matrix = base + first * keyWidth;
    for (let m = 0; m < valueWidth; ++m) value[m] = projected[v + first + m];
    const decay =
      attention === "linear"
        ? this.normalizeWeights(numbers, base + this.matricesSize + q)
        : this.correct(layer, head, numbers, matrix);
    attended.fill(0, first, first + valueWidth);
    for (let c = 0, at = matrix; c < keyWidth; ++c, at += valueWidth)
      for (let m = 0; m < valueWidth; ++m) {
        const sum = decay * numbers[at + m] + key[c] * value[m];
        numbers[at + m] = sum;
        attended[first + m] += query[c] * sum;
      }
  }

  // Linear attention: phi of query and key, and the query by the sum of its weights.
  normalizeWeights(numbers, kSum) {
    const { query, key } = this;
    const { eps, query_scale: queryScale, key_scale: keyScale } = this.model.options;
    let total = eps;
    for (let c = 0; c < key.length; ++c) {
      query[c] = phi(queryScale * query[c]);
      key[c] = phi(keyScale * key[c]);
      numbers[kSum + c] += key[c];
      total += query[c] * numbers[kSum + c];
    }
    for (let c = 0; c < key.length; ++c) query[c] /= total;
    return 1;
  }

  // The delta rule: query and key of length 1, and the value as the correction of what the key
  // recalls of the decayed matrix. Logits of strengths and decays follow those of the gates.
  correct(layer, head, numbers, matrix) {
    const { channels, projected, attended, query, key, value } = this;
    const { num_heads: heads, output_gate: gate, eps } = this.model.options;
    const strength = channels + (gate ? attended.length : 0) + head;
    const rate = layer.decay_rate?.[head] ?? 0;
    const decay = rate ? Math.exp(-rate * softplus(projected[strength + heads])) : 1;
    for (const x of [query, key, value]) for (let i = 0; i < x.length; ++i) x[i] *= sigmoid(x[i]);
    scale(query, 1 / (lengthOf(query, eps) * Math.sqrt(query.length)));
    scale(key, 1 / lengthOf(key, eps));
    for (let c = 0, at = matrix; c < key.length; ++c, at += value.length)
      for (let m = 0; m < value.length; ++m) value[m] -= decay * key[c] * numbers[at + m];
    scale(value, sigmoid(projected[strength]));
    return decay;
  }

  // The feed-forward part's output, into `change`.
  feed(layer, x) {
    const { inner, hidden } = this;
    const { activation } = this.model.options;
    multiply(layer.up, x, inner);
    for (let i = 0; i < hidden; ++i) {
      if (activation === "relu") inner[i] = Math.max(inner[i], 0);
      else if (activation === "gelu") inner[i] *= (1 + erf(inner[i] * Math.SQRT1_2)) / 2;
      else inner[i] *= inner[hidden + i] * sigmoid(inner[hidden + i]);
    }
    multiply(layer.down, inner, this.change);
  }
}

// The tensors of a model in one buffer.
class Tensors {
  constructor(table, buffer) {
    this.table = table;
    this.buffer = buffer;
  }

  // What `read` makes of name.0, name.1 and so on.
  every(name, read) {
    const names = Object.keys(this.table).filter((key) => key.startsWith(`${name}.`));
    const count = new Set(names.map((key) => key.split(".")[1])).size;
    return Array.from({ length: count }, (_, i) => read(`${name}.${i}`));
  }

  // A tensor of numbers; null if there is none.
  floats(name) {
    const entry = this.table[name];
    return entry ? new Float32Array(this.buffer, entry.offset, sizeOf(entry)) : null;
  }

  ints(name) {
    const entry = this.table[name];
    return new Int8Array(this.buffer, entry.offset, sizeOf(entry));
  }

  block(name) {
    return {
      ...Object.fromEntries(
        ["project_in", "project_out", "up", "down"].map((x) => [x, this.affine(`${name}.${x}`)]),
      ),
      mixer_norm: this.norm(`${name}.mixer_norm`),
      feedforward_norm: this.norm(`${name}.feedforward_norm`),
      taps: this.floats(`${name}.taps`),
      output_norm: this.floats(`${name}.output_norm`),
      decay_rate: this.floats(`${name}.decay_rate`),
    };
  }

  norm(name) {
    return { weight: this.floats(`${name}.weight`), bias: this.floats(`${name}.bias`) };
  }

  affine(name) {
    const levels = this.table[`${name}.levels`];
    const [outputs, inputs] = (levels ?? this.table[`${name}.weight`]).shape;
    const weight = levels
      ? dequantized(this.ints(`${name}.levels`), this.floats(`${name}.scale`))
      : this.floats(`${name}.weight`);
    return { weight, bias: this.floats(`${name}.bias`), outputs, inputs };
  }
}

// Levels times the scale of their output: a product takes float32.
function dequantized(levels, scale) {
  const weight = new Float32Array(levels.length), inputs = levels.length / scale.length;
  for (let row = 0, at = 0; row < scale.length; ++row)
    for (let i = 0; i < inputs; ++i, ++at) weight[at] = levels[at] * scale[row];
  return weight;
}

const sizeOf = (entry) => entry.shape.reduce((product, size) => product * size, 1);

// y = W x + b, four rows at a time: each x that is read serves four sums.
function multiply({ weight, bias, outputs, inputs }, x, y) {
  let row = 0;
  for (; row + 4 <= outputs; row += 4) {
    const a = row * inputs, b = a + inputs, c = b + inputs, d = c + inputs;
    let sumA = bias[row], sumB = bias[row + 1], sumC = bias[row + 2], sumD = bias[row + 3];
    for (let i = 0; i < inputs; ++i) {
      const value = x[i];
      sumA += weight[a + i] * value;
      sumB += weight[b + i] * value;
      sumC += weight[c + i] * value;
      sumD += weight[d + i] * value;
    }
    y[row] = sumA;
    y[row + 1] = sumB;
    y[row + 2] = sumC;
    y[row + 3] = sumD;
  }
  for (; row < outputs; ++row) {
    let sum = bias[row];
    for (let i = 0; i < inputs; ++i) sum += weight[row * inputs + i] * x[i];
    y[row] = sum;
  }
}

function add(change, x) {
  for (let i = 0; i < x.length; ++i) x[i] += change[i];
}

function scale(x, factor) {
  for (let i = 0; i < x.length; ++i) x[i] *= factor;
}

function lengthOf(x, eps) {
  let squares = eps;
  for (let i = 0; i < x.length; ++i) squares += x[i] ** 2;
  return Math.sqrt(squares);
}

// A layer norm, or an RMS norm if it has no bias. x and y may be the same.
function normalize({ weight, bias }, x, y, eps) {
  const width = x.length;
  let mean = 0, squares = 0;
  if (bias) {
    for (let i = 0; i < width; ++i) mean += x[i];
    mean /= width;
  }
  for (let i = 0; i < width; ++i) squares += (x[i] - mean) ** 2;
  const share = 1 / Math.sqrt(squares / width + eps);
  for (let i = 0; i < width; ++i) y[i] = (x[i] - mean) * share * weight[i] + (bias ? bias[i] : 0);
}

// An RMS norm of each head's outputs, in place.
function normalizeHeads(weight, x, eps) {
  const width = weight.length;
  for (let first = 0; first < x.length; first += width)
    normalize({ weight, bias: null }, x.subarray(first, first + width), x.subarray(first), eps);
}

// The embeddings of Vaswani et al. (2017), added to x from `first` on, rounded as in training.
function addSinusoids(position, x, first) {
  const width = x.length - first;
  for (let i = 0; i < width; i += 2) {
    const angle = position * Math.exp(i * (-Math.log(1e4) / width));
    x[first + i] += Math.fround(Math.sin(angle));
    if (i + 1 < width) x[first + i + 1] += Math.fround(Math.cos(angle));
  }
}

// elu(x) + 1.
const phi = (x) => (x > 0 ? x + 1 : Math.exp(x));

const sigmoid = (x) => 1 / (1 + Math.exp(-x));

const softplus = (x) => Math.max(x, 0) + Math.log1p(Math.exp(-Math.abs(x)));

// Press et al., Numerical Recipes, 6.2: a relative error of 1.2e-7 at most, of the complement.
const ERFC = [
  -1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398, 1.48851587,
  -0.82215223, 0.17087277,
];

function erf(x) {
  const t = 1 / (1 + Math.abs(x) / 2);
  const sum = ERFC.reduceRight((total, factor) => total * t + factor, 0);
  const complement = t * Math.exp(sum - x * x);
  return x < 0 ? complement - 1 : 1 - complement;
}

// The smallest index whose cumulative probability exceeds the noise.
function invertCdf(logits, noise, temperature) {
  const greatest = logits.reduce((a, b) => Math.max(a, b), -Infinity);
  const sums = new Float64Array(logits.length);
  let total = 0;
  for (let i = 0; i < logits.length; ++i)
    sums[i] = total += Math.exp((logits[i] - greatest) / temperature);
  return sums.findIndex((sum) => sum / total > noise);
}

// As PyTorch rounds.
function roundToEven(x) {
  const nearest = Math.round(x);
  return nearest - x === 0.5 && nearest % 2 ? nearest - 1 : nearest;
}

// A number in [0, 1) that depends on the integers alone: of a seed, a sequence, a place.
function uniform(...integers) {
  let hash = 0x9e3779b9;
  for (const integer of integers) {
    hash = Math.imul(hash ^ integer, 0x85ebca6b);
    hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35);
    hash ^= hash >>> 16;
  }
  return (hash >>> 0) / 2 ** 32;
}

// The bytes of a text in base64.
function bytesOf(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; ++i) bytes[i] = text.charCodeAt(i);
  return bytes;
}

if (typeof module !== "undefined") module.exports = { Engine, bytesOf, uniform };
