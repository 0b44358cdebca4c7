// "Shuffle it yourself": two small vision transformers. Their weights, with timm's names, and the pictures
// are a safetensors file in the page, see papers/layershuffle/compute/live.py. Layer 0 is 1 on the page.
const shuffle = (() => {
  const MODELS = ["baseline", "ls"];
  const TITLES = { baseline: "Usual training", ls: "LayerShuffle" };
  const about = JSON.parse(document.getElementById("live").textContent);
  const tensors = readTensors(about.weights);
  const [, height, width, channels = 1] = tensors.images.shape;

  // A safetensors file: the length of its header in 8 bytes, the header in JSON, the numbers.
  function readTensors(base64) {
    const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    const start = 8 + Number(new DataView(bytes.buffer).getBigUint64(0, true));
    const header = new TextDecoder().decode(bytes.subarray(8, start));
    const found = {};
    for (const [name, { dtype, shape, data_offsets: [from, to] }] of Object.entries(JSON.parse(header))) {
      const content = bytes.slice(start + from, start + to);
      found[name] = { shape, data: dtype === "F32" ? new Float32Array(content.buffer) : content };
    }
    return found;
  }

  // ---- forward pass: a state is a list of tokens, each a list of numbers ------------------------

  function linear(model, name, inputs) {
    const { data: weight, shape } = tensors[`${model}.${name}.weight`];
    const { data: bias } = tensors[`${model}.${name}.bias`];
    const size = weight.length / shape[0]; // of an input; the patches' weights have four dimensions
    return inputs.map((input) => Array.from(bias, (value, row) => {
      for (let i = 0; i < size; i++) value += weight[row * size + i] * input[i];
      return value;
    }));
  }

  const total = (values) => values.reduce((sum, value) => sum + value, 0);

  function norm(model, name, inputs) {
    const { data: weight } = tensors[`${model}.${name}.weight`];
    const { data: bias } = tensors[`${model}.${name}.bias`];
    return inputs.map((input) => {
      const mean = total(input) / input.length;
      const scale = 1 / Math.sqrt(total(input.map((value) => (value - mean) ** 2)) / input.length + 1e-6);
      return input.map((value, i) => (value - mean) * scale * weight[i] + bias[i]);
    });
  }

  // x times the normal distribution function at x, to 1e-7 (Abramowitz and Stegun, 7.1.26).
  function gelu(x) {
    const t = 1 / (1 + 0.3275911 * Math.abs(x) * Math.SQRT1_2);
    const series = [1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592, 0];
    const tail = 0.5 * series.reduce((sum, factor) => sum * t + factor) * Math.exp(-x * x / 2);
    return x * (x < 0 ? tail : 1 - tail);
  }

  function softmax(values) {
    const largest = Math.max(...values);
    const powers = values.map((value) => Math.exp(value - largest));
    const sum = total(powers);
    return powers.map((power) => power / sum);
  }

  function attention(model, block, tokens) {
    const projected = linear(model, `${block}.attn.qkv`, tokens); // queries, keys and values in a row
    const width = tokens[0].length;
    const size = width / about.heads;
    const mixed = tokens.map(() => new Array(width).fill(0));
    for (let head = 0; head < width; head += size) {
      projected.forEach((from, query) => {
        const weights = softmax(projected.map((to) => {
          let product = 0;
          for (let i = head; i < head + size; i++) product += from[i] * to[width + i];
          return product / Math.sqrt(size);
        }));
        projected.forEach((to, key) => {
          for (let i = head; i < head + size; i++) mixed[query][i] += weights[key] * to[2 * width + i];
        });
      });
    }
    return linear(model, `${block}.attn.proj`, mixed);
  }

  const add = (tokens, more) => tokens.map((token, t) => token.map((value, i) => value + more[t][i]));

  function runLayer(model, layer, tokens) {
    const block = `blocks.${layer}`;
    tokens = add(tokens, attention(model, block, norm(model, `${block}.norm1`, tokens)));
    const hidden = linear(model, `${block}.mlp.fc1`, norm(model, `${block}.norm2`, tokens));
    return add(tokens, linear(model, `${block}.mlp.fc2`, hidden.map((token) => token.map(gelu))));
  }

  const pixel = (picture, y, x, c) => tensors.images.data[((picture * height + y) * width + x) * channels + c];

  // The class token and the patches of a picture, with their places added.
  function embed(model, picture) {
    const side = tensors[`${model}.patch_embed.proj.weight`].shape[2];
    const patches = [];
    for (let top = 0; top + side <= height; top += side) {
      for (let left = 0; left + side <= width; left += side) {
        patches.push(Array.from({ length: channels * side * side }, (_, i) => {
          const c = Math.floor(i / side / side); // channel by channel, row by row
          const value = pixel(picture, top + Math.floor(i / side) % side, left + i % side, c);
          return (value / 255 - about.mean[c]) / about.std[c];
        }));
      }
    }
    const classToken = Array.from(tensors[`${model}.cls_token`].data);
    const tokens = [classToken, ...linear(model, "patch_embed.proj", patches)];
    const places = tensors[`${model}.pos_embed`].data;
    return tokens.map((token, t) => token.map((value, i) => value + places[t * token.length + i]));
  }

  // One number a class. A route lists the layers that run, in this order.
  function logits(model, picture, route) {
    const tokens = route.reduce((state, layer) => runLayer(model, layer, state), embed(model, picture));
    return linear(model, "head", norm(model, "norm", tokens.slice(0, 1)))[0];
  }

  // ---- the page: a button in .layers is a place in the order, and shows the layer that has it ---

  const root = document.getElementById("shuffle");
  const find = (query) => root.querySelector(query);
  const all = (query) => [...root.querySelectorAll(query)];
  const [pictures, places, rows] = [all(".pictures button"), all(".layers button"), all("tbody tr")];
  const original = places.map((_, place) => place);
  const state = { order: [...original], out: new Set(), picture: 0 };
  const classOf = (index) => about.classes[index] ?? `class ${index}`;
  const percent = (share) => `${Math.round(100 * share)} %`;

  function draw(canvas, picture) {
    [canvas.width, canvas.height] = [width, height];
    const shown = new ImageData(width, height);
    for (let i = 0; i < width * height; i++) {
      for (let c = 0; c < 3; c++) shown.data[4 * i + c] = pixel(picture, 0, i, Math.min(c, channels - 1));
      shown.data[4 * i + 3] = 255; // opaque
    }
    canvas.getContext("2d").putImageData(shown, 0, 0);
  }

  function show(said) {
    const route = state.order.filter((layer) => !state.out.has(layer));
    state.order.forEach((layer, place) => {
      const turn = route.indexOf(layer) + 1; // 0: left out
      places[place].textContent = layer + 1;
      places[place].style.setProperty("--depth", layer / original.length);
      places[place].classList.toggle("out", !turn);
      const runs = turn ? `runs as number ${turn} of ${route.length}` : "left out";
      places[place].ariaLabel = `Layer ${layer + 1}, ${runs}`;
    });
    const words = pictures.map((_, picture) => `${classOf(about.labels[picture])}:`);
    for (const model of MODELS) {
      let right = 0;
      pictures.forEach((button, picture) => {
        const shares = softmax(logits(model, picture, route));
        const answer = shares.indexOf(Math.max(...shares));
        const verdict = answer === about.labels[picture] ? "right" : "wrong";
        right += verdict === "right";
        button.querySelector(`[data-model=${model}]`).className = verdict;
        words[picture] += ` ${TITLES[model]} says ${classOf(answer)}, ${verdict}.`;
        if (picture === state.picture) showAnswer(model, shares, answer, verdict);
      });
      find(`.verdicts [data-model=${model}] small`).textContent = `${right} of ${pictures.length} pictures right`;
    }
    pictures.forEach((button, picture) => {
      button.ariaPressed = picture === state.picture;
      button.ariaLabel = words[picture];
      rows[picture].classList.toggle("true", picture === state.picture);
    });
    if (said) find("[role=status]").textContent = `${said} ${words[state.picture]}`;
  }

  function showAnswer(model, shares, answer, verdict) {
    const card = find(`.verdicts [data-model=${model}]`);
    card.className = verdict;
    card.querySelector("b").textContent = verdict;
    card.querySelector("span").textContent = `${classOf(answer)}, ${percent(shares[answer])}`;
    rows.forEach((row, picture) => {
      const cell = row.querySelector(`[data-model=${model}]`);
      const share = shares[about.labels[picture]];
      cell.querySelector("i").style.setProperty("--share", share);
      cell.querySelector("span").textContent = percent(share);
    });
  }

  function move(from, to) {
    const [layer] = state.order.splice(from, 1);
    state.order.splice(to, 0, layer);
    show(`Layer ${layer + 1} moved to place ${to + 1}.`);
  }

  function leaveOut(place) {
    const layer = state.order[place];
    const isBack = state.out.delete(layer);
    if (!isBack) state.out.add(layer);
    show(`Layer ${layer + 1} ${isBack ? "put back" : "left out"}.`);
  }

  let drag = null; // what a pointer holds: the place of a layer, and where the pointer was put down
  const STEPS = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 };
  places.forEach((button, place) => {
    button.addEventListener("click", () => { if (!drag?.moved) leaveOut(place); }); // Space and Enter, too
    button.addEventListener("keydown", (event) => {
      const target = place + STEPS[event.key];
      if (event.key === "Delete") leaveOut(place);
      if (event.key in STEPS) event.preventDefault(); // no scrolling
      if (!places[target]) return;
      move(place, target);
      places[target].focus();
    });
    button.addEventListener("pointerdown", (event) => {
      button.setPointerCapture(event.pointerId);
      drag = { place, x: event.clientX, y: event.clientY, moved: false };
    });
    button.addEventListener("pointermove", ({ clientX, clientY }) => {
      if (!drag || (!drag.moved && Math.hypot(clientX - drag.x, clientY - drag.y) < 6)) return;
      const offsets = places.map(({ parentElement }) => {
        const { left, top, width, height } = parentElement.getBoundingClientRect();
        return [clientX - left - width / 2, clientY - top - height / 2];
      });
      const distances = offsets.map(([x, y]) => Math.hypot(x, y));
      const nearest = distances.indexOf(Math.min(...distances));
      if (nearest !== drag.place) move(drag.place, nearest);
      Object.assign(drag, { place: nearest, moved: true });
      lift(nearest, offsets[nearest]);
    });
    for (const end of ["pointerup", "pointercancel"]) button.addEventListener(end, () => {
      if (drag?.moved) places[drag.place].focus({ preventScroll: true });
      lift(null);
      setTimeout(() => { drag = null; }); // after the click that ends a drag
    });
  });

  const lift = (lifted, [x, y] = []) => places.forEach((button, place) => {
    button.classList.toggle("lifted", place === lifted);
    button.style.translate = place === lifted ? `${x}px ${y}px` : "";
  });

  const permuted = () => original.map((layer) => [Math.random(), layer]).sort(([a], [b]) => a - b);
  const ORDERS = { random: () => permuted().map(([, layer]) => layer), reversed: () => [...original].reverse() };
  for (const button of all("[data-order]")) button.addEventListener("click", () => {
    state.order = ORDERS[button.dataset.order]?.() ?? [...original];
    state.out = new Set(button.dataset.order === "second" ? original.filter((layer) => layer % 2) : []);
    show(`${button.textContent}.`);
  });
  pictures.forEach((button, picture) => {
    draw(button.querySelector("canvas"), picture);
    button.addEventListener("click", () => { state.picture = picture; show("Picture chosen."); });
  });
  show();
  return { logits };
})();
