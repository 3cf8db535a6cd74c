"use strict";
// Data: texts and names of images once each, and columns of numbers as base64 of little-endian arrays.
const data = JSON.parse(document.getElementById("data").textContent);
const arrayOf = (Type, text) => {
  const letters = atob(text), bytes = new Uint8Array(letters.length);
  for (let place = 0; place < bytes.length; place++) bytes[place] = letters.charCodeAt(place);
  return new Type(bytes.buffer);
};
const listsOf = (packed) => ({ ends: arrayOf(Int32Array, packed.ends), values: arrayOf(Int32Array, packed.values) });
const { models, texts } = data;
const items = {
  task: arrayOf(Uint16Array, data.items.task),
  variant: arrayOf(Uint16Array, data.items.variant),
  seed: arrayOf(Int32Array, data.items.seed),
  image: arrayOf(Int32Array, data.items.image),
  query: arrayOf(Int32Array, data.items.query),
};
const words = listsOf(data.words), concepts = listsOf(data.concepts);
const answers = data.answers.map((each) => ({
  right: arrayOf(Uint8Array, each.right),
  kind: arrayOf(Uint8Array, each.kind),
  answer: arrayOf(Int32Array, each.answer),
  correct: arrayOf(Int32Array, each.correct),
  margin: arrayOf(Float32Array, each.margin),
}));
const total = items.task.length;
const ABSENT = 2, PAGE = 24;
const isAltered = (kind) => kind === 2 || kind === 3;
const KINDS = ["", "its own", "altered", "altered from another image", "of another image"];
const has = (lists, item, value) => {
  for (let place = item ? lists.ends[item - 1] : 0; place < lists.ends[item]; place++) {
    if (lists.values[place] === value) return true;
  }
  return false;
};
const number = (value) => value.toLocaleString("en");

// The state is what the address of the page contains, each part only if it differs from the start.
const START = { task: "", variant: "", concept: "", word: "", search: "", sort: "", page: "1", item: "" };
models.forEach((_, model) => (START[`m${model}`] = ""));
const state = { ...START };

const readAddress = () => {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const name of Object.keys(START)) state[name] = given.get(name) ?? START[name];
};
const writeAddress = () => {
  const changed = Object.entries(state).filter(([name, value]) => value !== START[name]);
  history.replaceState(null, "", "#" + new URLSearchParams(changed));
};

// Choices
const element = (name, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
};
const fields = {};
const addField = (place, label, name, field) => {
  field.name = name;
  field.addEventListener("input", () => {
    state[name] = field.value;
    state.page = START.page;
    state.item = "";
    show();
  });
  fields[name] = field;
  document.getElementById(place).append(element("label", {}, label, field));
};
const addSelect = (place, label, name, options) => {
  const field = element("select");
  for (const [value, text] of options) field.append(element("option", { value, textContent: text }));
  addField(place, label, name, field);
};
const counted = (lists) => {
  const counts = new Map();
  for (const value of lists.values) counts.set(value, (counts.get(value) ?? 0) + 1);
  return [...counts].sort((one, other) => other[1] - one[1]);
};
addSelect("what", "Benchmark or task", "task", [["", "all"], ...data.tasks.map((text, task) => [String(task), text])]);
addSelect("what", "Variant", "variant", [["", "all"], ...data.variantOrder.map((each) => [String(each), data.variants[each]])]);
const conceptCounts = counted(concepts), wordCounts = counted(words);
const wordNumbers = new Map(wordCounts.map(([value]) => [texts[value], value]));
if (conceptCounts.length) {
  const options = conceptCounts.map(([value, count]) => [texts[value], `${texts[value]} (${number(count)})`]);
  addSelect("what", "Concept of the replaced word", "concept", [["", "all"], ...options]);
  const list = element("datalist", { id: "known-words" });
  for (const [value] of wordCounts.slice(0, 500)) list.append(element("option", { value: texts[value] }));
  document.body.append(list);
  addField("what", "Replaced word", "word", element("input", { type: "search", autocomplete: "off" }));
  fields.word.setAttribute("list", "known-words");
}
addField("what", "Search in texts and names", "search", element("input", { type: "search", autocomplete: "off" }));
const sorts = [["", "as evaluated"], ["wrong", "most models wrong first"], ["split", "models disagree most first"]];
models.forEach((name, model) => sorts.push([`margin${model}`, `lowest margin of ${name} first`]));
models.forEach((name, model) => sorts.push([`-margin${model}`, `highest margin of ${name} first`]));
addSelect("what", "Order", "sort", sorts);
const OUTCOMES = [["", "any"], ["right", "correct"], ["wrong", "wrong"], ["fooled", "an altered item ranks first"]];
models.forEach((name, model) => addSelect("outcomes", name, `m${model}`, OUTCOMES));
document.getElementById("form").addEventListener("submit", (event) => event.preventDefault());

// Filters
const TESTS = {
  right: (of, item) => of.right[item] === 1,
  wrong: (of, item) => of.right[item] === 0,
  fooled: (of, item) => isAltered(of.kind[item]),
};
let lowered = null;
const filtered = () => {
  const tests = [];
  if (state.item !== "") tests.push((item) => item === Number(state.item));
  for (const name of ["task", "variant"]) {
    if (state[name] !== "") {
      const column = items[name], value = Number(state[name]);
      tests.push((item) => column[item] === value);
    }
  }
  models.forEach((_, model) => {
    const test = TESTS[state[`m${model}`]];
    if (test) tests.push((item) => test(answers[model], item));
  });
  if (state.concept !== "") {
    const value = texts.indexOf(state.concept);
    tests.push((item) => has(concepts, item, value));
  }
  if (state.word.trim() !== "") {
    const value = wordNumbers.get(state.word.trim().toLowerCase()) ?? -1;
    tests.push((item) => has(words, item, value));
  }
  if (state.search.trim() !== "") {
    lowered ??= texts.map((text) => text.toLowerCase());
    const wanted = state.search.trim().toLowerCase();
    const matches = Uint8Array.from(lowered, (text) => text.includes(wanted));
    const columns = [items.image, items.query, ...answers.flatMap((each) => [each.answer, each.correct])];
    tests.push((item) => columns.some((column) => column[item] >= 0 && matches[column[item]]));
  }
  const passed = [];
  for (let item = 0; item < total; item++) if (tests.every((test) => test(item))) passed.push(item);
  return passed;
};
const sorted = (passed) => {
  const marginOf = /^(-?)margin(\d+)$/.exec(state.sort);
  let key = null;
  if (marginOf && answers[marginOf[2]]) {
    const sign = marginOf[1] ? -1 : 1, { margin } = answers[marginOf[2]];
    key = (item) => (Number.isNaN(margin[item]) ? Infinity : sign * margin[item]);
  } else if (state.sort) {
    key = (item) => {
      let right = 0, wrong = 0;
      for (const each of answers) (right += each.right[item] === 1), (wrong += each.right[item] === 0);
      return state.sort === "wrong" ? -wrong : -Math.min(right, wrong);
    };
  }
  if (key === null) return passed;
  const keys = new Map(passed.map((item) => [item, key(item)]));
  return passed.sort((one, other) => {
    const a = keys.get(one), b = keys.get(other);
    return a === b ? one - other : a < b ? -1 : 1;
  });
};

// Cards
const picture = (name, alternative) => {
  const file = data.pictures[name];
  if (file === undefined) return element("div", { className: "no-picture", textContent: texts[name] });
  return element("img", { src: `${data.folder}/${file}`, alt: alternative, loading: "lazy", decoding: "async" });
};
const bare = (word) => word.toLowerCase().replace(/[^\p{L}\p{N}]/gu, "");
// Words that the correct text lacks are marked, if they are at most a third: other sentences stay unmarked.
const marked = (text, other) => {
  const own = text.split(/\s+/), known = new Set(other.split(/\s+/).map(bare));
  const isNew = own.map((word) => bare(word) !== "" && !known.has(bare(word)));
  if (3 * isNew.filter(Boolean).length > own.length) return [text];
  return own.flatMap((word, place) => [place ? " " : "", isNew[place] ? element("mark", { textContent: word }) : word]);
};
const card = (item) => {
  const head = [element("b", { textContent: data.variants[items.variant[item]] }), ` · ${data.tasks[items.task[item]]}`];
  if (items.seed[item] >= 0) head.push(` · seed ${items.seed[item]}`);
  const link = element("a", { href: `#item=${item}`, textContent: "link" });
  link.setAttribute("aria-label", `Link to item ${item}`);
  head.push(" · ", link);
  const text = element("div", { className: "card-text" }, element("p", { className: "card-head" }, ...head));
  const lines = element("dl");
  const line = (term, ...content) => lines.append(element("div", {}, element("dt", {}, ...[term].flat()), element("dd", {}, ...content)));
  if (items.query[item] >= 0) line("query", texts[items.query[item]]);
  // Models that gave one answer share a line.
  const groups = new Map(), corrects = new Map();
  models.forEach((name, model) => {
    const each = answers[model];
    if (each.right[item] === ABSENT) return;
    const key = `${each.right[item]} ${each.answer[item]} ${each.kind[item]}`;
    if (!groups.has(key)) groups.set(key, { model, names: [] });
    const margin = each.margin[item];
    groups.get(key).names.push(Number.isNaN(margin) ? name : `${name} (${margin.toFixed(3).replace("-", "−")})`);
    const correct = each.correct[item];
    corrects.set(correct, [...(corrects.get(correct) ?? []), name]);
  });
  const shown = (value, content) => (value in data.pictures ? [element("div", { className: "pick" }, picture(value, texts[value]), element("span", { className: "name", textContent: texts[value] }))] : content);
  for (const [correct, names] of corrects) {
    line(corrects.size > 1 ? `correct, ranked highest by ${names.join(", ")}` : "correct", ...shown(correct, [texts[correct]]));
  }
  for (const { model, names } of groups.values()) {
    const each = answers[model], isRight = each.right[item] === 1, kind = KINDS[each.kind[item]];
    const sign = element("span", { className: "sign", textContent: isRight ? "✓ " : "✗ " });
    const spoken = element("span", { className: "heard", textContent: isRight ? "correct: " : "wrong: " });
    const term = [sign, spoken, element("b", { textContent: names.join(", ") }), !isRight && kind ? `: ${kind}` : ""];
    const answer = each.answer[item], right = texts[each.correct[item]];
    line(term, ...(isRight && corrects.has(answer) ? ["the same"] : shown(answer, marked(texts[answer], right))));
  }
  text.append(lines);
  const made = element("article", { className: "card explored", tabIndex: -1 });
  made.setAttribute("aria-label", `Item ${item}`);
  if (items.image[item] >= 0) made.append(element("div", { className: "pictures" }, picture(items.image[item], texts[items.image[item]])));
  made.append(text);
  return made;
};

// Summary
const summary = (passed) => {
  const body = element("tbody"), percent = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(1)} %` : "–");
  models.forEach((name, model) => {
    const each = answers[model];
    let answered = 0, right = 0, ranked = 0, fooled = 0;
    for (const item of passed) {
      if (each.right[item] === ABSENT) continue;
      answered++;
      right += each.right[item];
      if (each.kind[item]) ranked++;
      if (isAltered(each.kind[item])) fooled++;
    }
    const head = element("th", { scope: "row", textContent: name });
    const cells = [answered, right, percent(right, answered), ranked ? fooled : "–", percent(fooled, ranked)];
    body.append(element("tr", {}, head, ...cells.map((cell) => element("td", { textContent: typeof cell === "number" ? number(cell) : cell }))));
  });
  const heads = ["Model", "Items", "Correct", "%", "Fooled", "%"].map((text, place) => element("th", { scope: "col", className: place ? "" : "words", textContent: text }));
  const table = element("table", { className: "figures" }, element("thead", {}, element("tr", {}, ...heads)), body);
  document.getElementById("summary").replaceChildren(table);
};

let shownItems = [];
const show = () => {
  shownItems = sorted(filtered());
  const last = Math.max(1, Math.ceil(shownItems.length / PAGE));
  const page = Math.min(last, Math.max(1, Math.floor(Number(state.page)) || 1));
  state.page = String(page);
  document.getElementById("count").textContent = `${number(shownItems.length)} of ${number(total)} items`;
  summary(shownItems);
  const ofPage = shownItems.slice((page - 1) * PAGE, page * PAGE);
  document.getElementById("cards").replaceChildren(...ofPage.map(card));
  for (const id of ["pages", "pages-below"]) {
    const before = element("button", { type: "button", textContent: "Previous", disabled: page === 1 });
    const after = element("button", { type: "button", textContent: "Next", disabled: page === last });
    before.addEventListener("click", () => turn(-1));
    after.addEventListener("click", () => turn(1));
    document.getElementById(id).replaceChildren(before, `page ${number(page)} of ${number(last)}`, after);
  }
  for (const [name, field] of Object.entries(fields)) if (field.value !== state[name]) field.value = state[name];
  writeAddress();
};
const turn = (step) => {
  state.page = String(Number(state.page) + step);
  show();
  document.getElementById("pages").scrollIntoView();
};
const step = (way) => {
  const cards = [...document.querySelectorAll(".explored")];
  const place = cards.indexOf(document.activeElement) + way;
  cards[Math.min(cards.length - 1, Math.max(0, place))]?.focus();
};
const KEYS = {
  "/": () => fields.search.focus(),
  n: () => turn(1),
  p: () => turn(-1),
  j: () => step(1),
  k: () => step(-1),
  x: () => (Object.assign(state, START), show()),
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input, select")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.key in KEYS) {
    event.preventDefault();
    KEYS[event.key]();
  }
});
addEventListener("hashchange", () => (readAddress(), show()));
document.getElementById("lede").textContent =
  `${number(total)} items: ${data.tasks.join(", ")}. Filter them, and compare the answers of ${models.join(", ")}.`;
readAddress();
show();
// The first search need not wait for this.
setTimeout(() => (lowered ??= texts.map((text) => text.toLowerCase())));
