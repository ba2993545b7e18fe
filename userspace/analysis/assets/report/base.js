// What all pictures and tables of the page use: the data, its names and units, and elements.
//
// Text that comes from the recordings was chosen by others: it becomes text nodes, and nothing else.
"use strict";

const NcclReport = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);

  // What a reader could take for the page's own order or layout.
  const OBEYED = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;
  const clean = (text) => String(text).replace(OBEYED, "\ufffd");

  /** An element; children are elements or text. */
  function el(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false) continue;
      if (name === "class") made.className = value;
      else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else made.setAttribute(name, value === true ? "" : value);
    }
    return add(made, children);
  }

  function svg(tag, attributes = {}, ...children) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined) made.setAttribute(name, value);
    }
    return add(made, children);
  }

  function add(to, children) {
    for (const child of children.flat(Infinity)) {
      if (child === null || child === undefined || child === false) continue;
      to.append(child instanceof Node ? child : document.createTextNode(clean(child)));
    }
    return to;
  }

  /** Text of others' making. */
  const name = (text) => el("span", { class: "name" }, text);

  // Numbers with three digits that count.
  function digits(value) {
    const size = Math.abs(value);
    if (size >= 100 || value === 0) return value.toFixed(0);
    return value.toFixed(size >= 10 ? 1 : 2);
  }

  function scaled(value, units, step) {
    let at = 0;
    while (Math.abs(value) >= 999.5 * (step / 1000) && at + 1 < units.length) {
      value /= step;
      at += 1;
    }
    return (at === 0 && Number.isInteger(value) ? String(value) : digits(value)) + "\u00a0" + units[at];
  }

  const bytes = (value) => (value === null || value === undefined ? "–" : scaled(value, ["B", "KB", "MB", "GB", "TB", "PB"], 1000));
  const rate = (perSecond) => (perSecond === null || !isFinite(perSecond) ? "–" : scaled(perSecond, ["B/s", "KB/s", "MB/s", "GB/s", "TB/s"], 1000));
  const count = (value) => (value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en-US"));

  /** A size that a program chose: those are multiples of powers of two. */
  function size(value) {
    if (value === null || value === undefined) return "size not known";
    for (const [unit, of] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
      if (value >= of) return `${Number.isInteger(value / of) ? value / of : digits(value / of)}\u00a0${unit}`;
    }
    return bytes(value);
  }

  function duration(ns) {
    if (ns === null || ns === undefined) return "–";
    if (ns === 0) return "0";
    if (ns < 1e3) return `${Math.round(ns)}\u00a0ns`;
    if (ns < 999.5e3) return `${digits(ns / 1e3)}\u00a0µs`;
    if (ns < 999.5e6) return `${digits(ns / 1e6)}\u00a0ms`;
    if (ns < 120e9) return `${digits(ns / 1e9)}\u00a0s`;
    if (ns < 7200e9) return `${digits(ns / 60e9)}\u00a0min`;
    return `${digits(ns / 3600e9)}\u00a0h`;
  }
  const micros = (us) => duration(us === null || us === undefined ? us : us * 1000);

  /** A moment, as it lies after the begin. */
  const after = (us) => `+${(us / 1e6).toFixed(us % 1000 === 0 ? 3 : 6)}\u00a0s`;
  const wall = (ms) => (ms === null || ms === undefined ? "–" : new Date(ms).toISOString().replace("T", " ").replace("Z", " UTC"));
  const t0Ms = Number(BigInt(data.t0) / 1000000n);
  const sum = (values) => values.reduce((all, value) => all + value, 0);

  // Waits, in the order of the data's numbers. The legend and every table have these words.
  const WAIT_WORDS = {
    gpu_ready: "waiting for own GPU to fill the slot (send)",
    peer_buffer: "waiting for peer's buffer (send)",
    gpu_ready_or_peer_buffer: "waiting for own GPU or peer's buffer (send)",
    network: "on the network (send)",
    from_peer: "waiting for peer's data (receive)",
    flush: "flush to the GPU (receive)",
    gpu_consume: "waiting for own GPU to take it (receive)",
    flush_or_gpu_consume: "flush, or waiting for own GPU to take it (receive)",
  };
  const waitNames = data.waitNames;
  const waitWords = waitNames.map((wait) => WAIT_WORDS[wait] || wait);

  // Colours come from the style sheet, so that they follow the theme.
  const colour = (variable) => getComputedStyle(document.documentElement).getPropertyValue(`--${variable}`).trim();
  const redraws = [];
  /** Draws now, and again when the theme or the width changes. */
  function draws(draw) {
    redraws.push(draw);
    draw();
  }
  const redraw = () => redraws.forEach((draw) => draw());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width) {
      width = innerWidth;
      redraw();
    }
  });
  addEventListener("beforeprint", () => { document.documentElement.classList.add("print"); redraw(); });
  addEventListener("afterprint", () => { document.documentElement.classList.remove("print"); redraw(); });

  /** A canvas of this size in CSS pixels, sharp on every screen. */
  function canvas(made, wide, high) {
    const ratio = Math.min(devicePixelRatio || 1, 2);
    made.width = Math.max(1, Math.round(wide * ratio));
    made.height = Math.max(1, Math.round(high * ratio));
    made.style.width = `${wide}px`;
    made.style.height = `${high}px`;
    const context = made.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    return context;
  }

  // Communicators and ranks.
  const comms = data.comms;
  comms.forEach((comm) => { comm.byRank = new Map(comm.ranks.map((rank) => [rank.rank, rank])); });
  const jobTitle = (job) => `Job ${job.name === null ? "without a name" : clean(job.name)}`;
  function commTitle(comm) {
    const short = comm.name.length > 14 ? `${comm.name.slice(0, 10)}…${comm.name.slice(18)}` : comm.name;
    const job = data.jobs.length > 1 ? data.jobs.find((of) => of.comms.includes(comms.indexOf(comm))) : null;
    return (job ? `${jobTitle(job)}: ` : "") + (comm.commName ? `${clean(comm.commName)} (${short})` : short);
  }
  function place(comm, rank) {
    const known = comm.byRank.get(rank);
    if (!known) return "not recorded";
    const gpu = known.gpu === null ? "" : `, GPU\u00a0${known.gpu}`;
    return `${clean(data.hosts[known.host]) || "host not known"}${gpu}`;
  }
  function kindTitle(kind) {
    const runs = kind.runsAs ? ` (runs as ${kind.runsAs})` : "";
    const how = [kind.algorithm, kind.protocol].filter(Boolean).join("/");
    const of = kind.bytes === null ? "" : ` · ${kind.rounded ? "up to " : ""}${size(kind.bytes)}`;
    const channels = kind.channels ? ` · ${kind.channels} ${kind.channels === 1 ? "channel" : "channels"}` : "";
    return clean(`${kind.function}${runs}${of}${how ? ` · ${how}` : ""}${channels}`);
  }

  // The box beside the pointer.
  const tip = document.getElementById("tip");
  function showTip(x, y, ...content) {
    tip.replaceChildren();
    add(tip, content);
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 8))}px`;
    tip.style.top = `${y + 18 + box.height > innerHeight ? Math.max(4, y - box.height - 10) : y + 18}px`;
  }
  const hideTip = () => { tip.hidden = true; };

  /** A small bar of what was waited for, and its words. */
  function waitBar(waits) {
    const all = sum(waits);
    if (!all) return el("span", { class: "tag" }, "–");
    const shares = waits.map((wait, at) => [at, wait / all]).filter(([, share]) => share > 0.004);
    const words = shares.slice().sort((a, b) => b[1] - a[1])
      .map(([at, share]) => `${Math.round(share * 100)} % ${waitWords[at]}`).join("; ");
    const parts = shares.map(([at, share]) => {
      const part = el("i");
      part.style.width = `${share * 100}%`;
      part.style.background = `var(--wait-${at})`;
      return part;
    });
    return el("div", { class: "waits", role: "img", "aria-label": words, title: words }, parts);
  }

  function swatch(variable, pale) {
    const made = el("span", { class: pale ? "swatch pale" : "swatch" });
    made.style.background = `var(--${variable})`;
    return made;
  }

  /** A choice among things. */
  function choice(label, options, change) {
    const select = el("select", { onchange: () => change(select.value) },
      options.map(([value, text]) => el("option", { value }, text)));
    return el("label", {}, label, select);
  }

  /**
   * A table that is sorted by the column that is clicked. A column: `title`, `value` (for sorting), `show` (what
   * stands there), `number`. It shows `first` rows until all are asked for.
   */
  function table(columns, rows, { sort, down = true, first = 12, caption } = {}) {
    let by = sort === undefined ? null : columns[sort];
    let falls = down;
    let all = rows.length <= first + 3;
    const body = el("tbody");
    const heads = columns.map((column) => {
      const button = column.value
        ? el("button", { type: "button", onclick: () => { falls = by === column ? !falls : column.number === true; by = column; fill(); } }, column.title)
        : column.title;
      return el("th", { scope: "col", class: column.number ? "number" : null }, button);
    });
    const more = el("p", { class: "more" });
    function fill() {
      const sorted = rows.slice();
      if (by) {
        const order = (a, b) => {
          const [x, y] = [by.value(a), by.value(b)];
          if (x === y) return 0;
          if (x === null || x === undefined) return 1;
          if (y === null || y === undefined) return -1;
          return (x < y ? -1 : 1) * (falls ? -1 : 1);
        };
        sorted.sort(order);
      }
      heads.forEach((head, at) => {
        if (columns[at] === by) head.setAttribute("aria-sort", falls ? "descending" : "ascending");
        else head.removeAttribute("aria-sort");
      });
      const shown = all ? sorted : sorted.slice(0, first);
      body.replaceChildren(...shown.map((row) => el("tr", {}, columns.map((column) =>
        el("td", { class: column.number ? "number" : column.class }, column.show(row))))));
      more.replaceChildren();
      if (!all) {
        add(more, [el("button", { type: "button", onclick: () => { all = true; fill(); } }, `Show all ${count(rows.length)}`)]);
      }
    }
    fill();
    const made = el("table", {}, caption ? el("caption", {}, caption) : null, el("thead", {}, el("tr", {}, heads)), body);
    return el("div", {}, el("div", { class: "wrap" }, made), more);
  }

  const empty = (text) => el("p", { class: "empty" }, text);
  const into = (id, ...children) => { const to = document.getElementById(id); to.replaceChildren(); return add(to, children); };

  /** A chart is drawn: the first one is what a reader waits for. */
  function drawn() {
    const { dataset } = document.documentElement;
    if (!dataset.firstPicture) dataset.firstPicture = performance.now().toFixed(1);
  }

  // What is drawn, for whoever checks it: functions that give the numbers of a picture.
  const shown = {};

  return {
    data, comms, el, svg, add, name, clean, bytes, rate, count, size, duration, micros, after, wall, t0Ms, sum, waitNames,
    waitWords, colour, draws, redraw, canvas, jobTitle, commTitle, place, kindTitle, showTip, hideTip, waitBar, swatch, choice,
    table, empty, into, shown, drawn,
  };
})();
