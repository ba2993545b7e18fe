// Operations of all ranks along time, and what went over the links meanwhile.
"use strict";

(() => {
  const { data, comms, el, choice, canvas, colour, draws, commTitle, place, kindTitle, showTip, hideTip, empty, into, add,
    micros, after, duration, waitWords, swatch, sum, rate, clean, t0Ms, shown } = NcclReport;

  /** Columns of a lane as numbers; moments are microseconds after the begin of all. */
  function decode(lane) {
    const running = (steps) => { let at = 0; return Float64Array.from(steps, (step) => (at += step)); };
    const n = lane.at.length;
    const waits = new Array(waitWords.length).fill(null);
    for (const [wait, column] of Object.entries(lane.waits)) waits[Number(wait)] = column;
    const ops = lane.ops.length ? lane.ops : new Array(n).fill(1);
    return { comm: comms[lane.comm], commAt: lane.comm, rank: lane.rank, p2p: lane.p2p, n, at: running(lane.at), us: lane.us,
      number: running(lane.number), kind: lane.kind, ops, measured: lane.measured.length ? lane.measured : ops, code: lane.code, waits,
      longest: lane.us.reduce((most, us) => Math.max(most, us), 0) };
  }
  const lanes = data.timeline.lanes.map(decode);
  const waitsOf = (lane, at) => lane.waits.map((column) => (column ? column[at] : 0));

  function firstAfter(values, value) {
    let [low, high] = [0, values.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] < value) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  // The part that is shown, by all charts: microseconds.
  const whole = [0, Math.max(data.spanUs, 1)];
  const pad = (whole[1] - whole[0]) * 0.005;
  const full = [whole[0] - pad, whole[1] + pad];
  let range = full.slice();
  const listeners = [];
  function setRange(from, to, who) {
    const shortest = 2;
    let wide = Math.max(shortest, Math.min(to - from, full[1] - full[0]));
    let begin = Math.max(full[0], Math.min(from, full[1] - wide));
    range = [begin, begin + wide];
    listeners.forEach(([of, tell]) => { if (of !== who) tell(); });
  }

  function tell(lane, at) {
    const kind = data.kinds[lane.kind[at]];
    const ops = lane.ops[at];
    const first = lane.number[at];
    const what = kind && kind.isCall ? "call" : lane.p2p ? "send or receive" : "collective";
    const title = ops > 1 ? `${ops} operations, the longest: ${kindTitle(kind)}` : kindTitle(kind);
    const parts = [el("b", {}, title), el("div", {}, `rank ${lane.rank} (${place(lane.comm, lane.rank)}) of ${commTitle(lane.comm)}`)];
    const numbers = ops > 1 ? `${what}s from ${first} on` : `${what} ${first}`;
    if (lane.measured[at] > 0) {
      const all = lane.measured[at] === ops ? "" : `; ${ops - lane.measured[at]} of them not measured`;
      parts.push(el("div", {}, `${numbers}: ${after(lane.at[at])}, ${micros(lane.us[at])}${all}`));
    } else {
      parts.push(el("div", {}, `${numbers}: ${kind && kind.isCall ? "called" : "launched"} at ${after(lane.at[at])}; ${kind && kind.isCall ? "a call" : "planned, not measured"}`));
    }
    const waits = waitsOf(lane, at);
    const all = sum(waits);
    if (all) {
      const rows = waits.map((us, wait) => [wait, us]).filter(([, us]) => us > 0).sort((a, b) => b[1] - a[1]);
      parts.push(el("table", {}, rows.map(([wait, us]) => el("tr", {}, el("td", {}, swatch(`wait-${wait}`)), el("td", {}, waitWords[wait]),
        el("td", { class: "number" }, `${Math.round((us / all) * 100)} %`), el("td", { class: "number" }, micros(us))))));
      parts.push(el("div", { class: "soft" }, "waits of all its messages together"));
    }
    const code = lane.code.length ? data.code[lane.code[at]] : null;
    if (code) parts.push(el("div", { class: "soft" }, "from ", el("span", { class: "mono name" }, code.line)));
    return parts;
  }

  function timeline() {
    const usedWaits = waitWords.map((_, wait) => lanes.some((lane) => lane.waits[wait] !== null));
    const isPlanned = lanes.some((lane) => lane.measured.some((measured) => measured === 0));
    const legend = document.getElementById("timeline-legend");
    usedWaits.forEach((used, wait) => { if (used) legend.append(el("li", {}, swatch(`wait-${wait}`), waitWords[wait])); });
    const known = lanes.some((lane) => lane.measured.some((measured) => measured > 0));
    if (known) legend.append(el("li", {}, swatch("bar"), "no wait was seen"));
    if (isPlanned) legend.append(el("li", {}, swatch("planned"), data.kinds.some((kind) => kind.isCall) ? "moment of the call, or of the launch" : "planned only: moment of the launch"));

    const box = document.getElementById("lanes");
    const made = el("canvas", { tabindex: 0, role: "img", "aria-label": "Timeline of operations by rank; arrow keys walk from bar to bar" });
    const view = el("div", { class: "view" }, made);
    const spacer = el("div");
    const live = document.getElementById("timeline-live");
    box.replaceChildren(view, spacer);
    let filter = "all";
    let visible = lanes;
    let selected = null;
    let hovered = null;
    let laneHeight = 18;
    let [width, height] = [800, 300];
    const left = 118;
    const axis = 36;
    // Lanes of the ranks that the verdict names, and since when nothing more is in them.
    const found = new Map(data.verdict.ranks.map(([comm, rank]) => [`${comm} ${rank}`, true]));
    const isFound = (lane) => found.has(`${lane.commAt} ${lane.rank}`);
    const endOf = (lane) => (lane.n ? lane.at[lane.n - 1] + lane.us[lane.n - 1] : whole[0]);
    const lastOf = (lane) => Math.max(...lanes.filter((of) => of.comm === lane.comm && of.p2p === lane.p2p).map(endOf));
    const stops = new Map(lanes.filter(isFound).map((lane) => [lane, lastOf(lane) - endOf(lane) > whole[1] * 0.005 ? endOf(lane) : null]));
    // Where a rank came late.
    const late = new Map(lanes.filter((lane) => !lane.p2p).map((lane) => [lane, data.verdict.stalls.filter(([comm, rank]) => comm === lane.commAt && rank === lane.rank)]));
    const isFault = data.verdict.level === "fault";
    if (data.verdict.stalls.length) legend.append(el("li", {}, swatch("slow", true), "launches late: from when the others launched until it did"));
    if (stops.size) legend.append(el("li", {}, swatch(isFault ? "fault" : "slow"), [...stops.values()].some((at) => at !== null) ? "the rank of the verdict, and since when it does nothing more" : "the rank of the verdict"));

    function layout() {
      visible = lanes.filter((lane) => filter === "all" || String(lane.commAt) === filter);
      width = Math.max(320, box.clientWidth);
      const room = document.documentElement.classList.contains("print") ? 900 : Math.max(260, Math.min(520, innerHeight - 300));
      laneHeight = Math.max(9, Math.min(26, Math.floor((room - axis) / Math.max(1, visible.length))));
      const all = visible.length * laneHeight + axis;
      height = Math.min(all, room);
      spacer.style.height = `${all - height}px`;
      box.style.maxHeight = `${height + 2}px`;
    }
    const x = (us) => left + ((us - range[0]) / (range[1] - range[0])) * (width - left);
    const us = (px) => range[0] + ((px - left) / (width - left)) * (range[1] - range[0]);
    const top = () => box.scrollTop;

    function draw() {
      const context = canvas(made, width, height);
      const colours = waitWords.map((_, wait) => colour(`wait-${wait}`));
      const [bar, planned, text, soft, faint, line] = ["bar", "planned", "text", "soft", "faint", "line"].map(colour);
      context.fillStyle = colour("bg");
      context.fillRect(0, 0, width, height);
      drawAxis(context, soft, faint);
      const begin = Math.floor(top() / laneHeight);
      const end = Math.min(visible.length, Math.ceil((top() + height - axis) / laneHeight));
      context.save();
      context.beginPath();
      context.rect(0, 0, width, height - axis);
      context.clip();
      const marked = colour(isFault ? "fault" : "slow");
      for (let at = begin; at < end; at += 1) {
        const stop = stops.get(visible[at]);
        if (stop === undefined || stop === null) continue;
        const from = Math.max(left, x(stop));
        context.globalAlpha = 0.22;
        context.fillStyle = marked;
        context.fillRect(from, at * laneHeight - top(), Math.max(0, width - from), laneHeight);
        context.globalAlpha = 1;
        context.fillRect(from, at * laneHeight - top(), 2, laneHeight);
      }
      for (let at = begin; at < end; at += 1) {
        for (const [, , from, us_] of late.get(visible[at]) || []) {
          if (from + us_ < range[0] || from > range[1]) continue;
          context.fillStyle = marked;
          context.globalAlpha = 0.45;
          context.fillRect(Math.max(left, x(from)), at * laneHeight - top(), Math.max(1, x(from + us_) - Math.max(left, x(from))), laneHeight - 1);
          context.globalAlpha = 1;
        }
      }
      for (let at = begin; at < end; at += 1) drawLane(context, visible[at], at * laneHeight - top(), { colours, bar, planned });
      context.fillStyle = colour("bg");
      context.fillRect(0, 0, left - 4, height - axis);
      context.font = "11px system-ui, sans-serif";
      context.textBaseline = "middle";
      const every = laneHeight >= 11 ? 1 : 2;
      for (let at = begin; at < end; at += 1) {
        const y = at * laneHeight - top();
        const lane = visible[at];
        const isFirst = at === 0 || visible[at - 1].comm !== lane.comm || visible[at - 1].p2p !== lane.p2p;
        if (isFirst && at > 0) {
          context.fillStyle = line;
          context.fillRect(0, y, width, 1);
        }
        if (!isFirst && at % every && !isFound(lane)) continue;
        context.fillStyle = isFound(lane) ? marked : lane === (selected || {}).lane ? text : soft;
        context.textAlign = "right";
        context.fillText(`${isFound(lane) ? "▶ " : ""}${lane.p2p ? "p2p " : ""}${lane.rank}`, left - 10, y + laneHeight / 2);
        if (isFirst) {
          context.textAlign = "left";
          const title = lane.comm.commName ? clean(lane.comm.commName) : lane.comm.name.slice(0, 10);
          context.fillText(title.length > 12 ? `${title.slice(0, 11)}…` : title, 6, y + laneHeight / 2, left - 46);
        }
      }
      const mark = selected || hovered;
      if (mark) outline(context, mark, text);
      context.restore();
    }

    function drawAxis(context, soft, faint) {
      const wide = range[1] - range[0];
      const raw = (wide / Math.max(2, (width - left) / 110));
      const power = 10 ** Math.floor(Math.log10(raw));
      const step = [1, 2, 5, 10].map((of) => of * power).find((of) => of >= raw);
      context.font = "11px system-ui, sans-serif";
      context.textAlign = "center";
      context.textBaseline = "alphabetic";
      const [unit, of] = wide > 2e6 ? ["s", 1e6] : wide > 2e3 ? ["ms", 1e3] : ["µs", 1];
      const places = Math.max(0, Math.min(6, -Math.floor(Math.log10(step / of))));
      for (let at = Math.ceil(range[0] / step) * step; at <= range[1]; at += step) {
        context.fillStyle = faint;
        context.fillRect(Math.round(x(at)), 0, 1, height - axis);
        context.fillStyle = soft;
        context.fillText(`${(at / of).toFixed(places)} ${unit}`, Math.max(left + 24, Math.min(width - 26, x(at))), height - 21);
      }
      context.fillStyle = soft;
      context.fillText(`time since ${new Date(t0Ms).toISOString().slice(11, 19)} UTC`, (left + width) / 2, height - 6);
      context.textAlign = "right";
      context.fillText("rank", left - 10, height - 21);
    }

    function drawLane(context, lane, y, { colours, bar, planned }) {
      const inner = laneHeight - (laneHeight > 12 ? 4 : 2);
      const from = y + (laneHeight - inner) / 2;
      let last = -1;
      for (let at = firstAfter(lane.at, range[0] - lane.longest); at < lane.n && lane.at[at] <= range[1]; at += 1) {
        const begin = x(lane.at[at]);
        if (lane.measured[at] === 0) {
          if (Math.floor(begin) === last) continue;
          last = Math.floor(begin);
          context.fillStyle = planned;
          context.fillRect(last, from + inner * 0.2, 1, inner * 0.6);
          continue;
        }
        const end = x(lane.at[at] + lane.us[at]);
        if (end < left) continue;
        const wide = Math.max(1, end - begin - (end - begin > 5 ? 1 : 0));
        if (wide <= 1 && Math.floor(begin) === last) continue;
        last = Math.floor(begin);
        let [all, most, largest] = [0, -1, 0];
        for (let wait = 0; wait < colours.length; wait += 1) {
          const part = lane.waits[wait] ? lane.waits[wait][at] : 0;
          all += part;
          if (part > largest) [most, largest] = [wait, part];
        }
        if (!all || wide < 3 || laneHeight < 9) {
          context.fillStyle = all ? colours[most] : bar;
          context.fillRect(begin, from, wide, inner);
          continue;
        }
        // Shares from the top down, always in the same order.
        let down = from;
        for (let wait = 0; wait < colours.length; wait += 1) {
          const part = lane.waits[wait] ? lane.waits[wait][at] : 0;
          if (!part) continue;
          const high = (part / all) * inner;
          context.fillStyle = colours[wait];
          context.fillRect(begin, down, wide, high);
          down += high;
        }
      }
    }

    /** The same operation on all ranks. */
    function outline(context, { lane, at }, text) {
      visible.forEach((other, row) => {
        if (other.comm !== lane.comm || other.p2p || lane.p2p) {
          if (other !== lane) return;
        }
        const same = other === lane ? at : other.number.indexOf(lane.number[at]);
        if (same < 0) return;
        const y = row * laneHeight - top();
        const begin = Math.max(left, x(other.at[same]));
        const end = Math.max(begin, x(other.at[same] + other.us[same]));
        if (end < left || begin > width) return;
        context.strokeStyle = text;
        context.lineWidth = other === lane ? 2 : 1;
        context.strokeRect(begin - 0.5, y + 1, Math.max(2, end - begin), laneHeight - 2);
      });
    }

    function find(event) {
      const rect = made.getBoundingClientRect();
      const [px, py] = [event.clientX - rect.left, event.clientY - rect.top];
      const lane = visible[Math.floor((py + top()) / laneHeight)];
      if (!lane || px < left || py > height - axis) return null;
      const here = us(px);
      const slack = ((range[1] - range[0]) / (width - left)) * 4;
      let best = null;
      for (let at = firstAfter(lane.at, here - lane.longest - slack); at < lane.n && lane.at[at] <= here + slack; at += 1) {
        const far = Math.max(0, lane.at[at] - here, here - lane.at[at] - lane.us[at]);
        if (far > slack) continue;
        if (!best || far < best.far || (far === best.far && lane.us[at] < lane.us[best.at])) best = { lane, at, far };
      }
      return best;
    }

    let moving = null;
    let queued = false;
    const later = () => {
      if (queued) return;
      queued = true;
      requestAnimationFrame(() => { queued = false; draw(); });
    };
    made.addEventListener("pointerdown", (event) => {
      moving = { x: event.clientX, range: range.slice(), moved: false };
      made.setPointerCapture(event.pointerId);
    });
    made.addEventListener("pointermove", (event) => {
      if (moving) {
        const by = ((event.clientX - moving.x) / (width - left)) * (moving.range[1] - moving.range[0]);
        if (Math.abs(event.clientX - moving.x) > 3) {
          moving.moved = true;
          made.classList.add("moving");
          hideTip();
          setRange(moving.range[0] - by, moving.range[1] - by);
        }
        return;
      }
      const found = find(event);
      const changed = (found && `${found.lane.commAt} ${found.lane.rank} ${found.lane.p2p} ${found.at}`) !== (hovered && hovered.key);
      hovered = found && { ...found, key: `${found.lane.commAt} ${found.lane.rank} ${found.lane.p2p} ${found.at}` };
      if (changed) later();
      if (found) showTip(event.clientX, event.clientY, ...tell(found.lane, found.at));
      else hideTip();
    });
    const drop = (event) => {
      if (moving && !moving.moved) { selected = find(event); say(); later(); }
      moving = null;
      made.classList.remove("moving");
    };
    made.addEventListener("pointerup", drop);
    made.addEventListener("pointercancel", () => { moving = null; made.classList.remove("moving"); });
    made.addEventListener("pointerleave", () => { hovered = null; hideTip(); later(); });
    made.addEventListener("wheel", (event) => {
      if (event.ctrlKey || event.metaKey) {
        event.preventDefault();
        zoom(event.deltaY > 0 ? 1.25 : 0.8, us(event.clientX - made.getBoundingClientRect().left));
      } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        event.preventDefault();
        move((event.deltaX || event.deltaY) / (width - left));
      }
    }, { passive: false });
    made.addEventListener("dblclick", (event) => zoom(0.25, us(event.clientX - made.getBoundingClientRect().left)));
    box.addEventListener("scroll", later);

    function zoom(by, around = (range[0] + range[1]) / 2) {
      const part = (around - range[0]) / (range[1] - range[0]);
      const wide = (range[1] - range[0]) * by;
      setRange(around - wide * part, around + wide * (1 - part));
    }
    const move = (by) => setRange(range[0] + (range[1] - range[0]) * by, range[1] + (range[1] - range[0]) * by);

    function say() {
      live.replaceChildren();
      if (!selected) return;
      add(live, [tell(selected.lane, selected.at).filter((part) => part.tagName !== "TABLE").map((part) => part.textContent).join(" · ")]);
    }
    /** Brings a bar into view. */
    function reveal({ lane, at }, closer) {
      const row = visible.indexOf(lane);
      if (row >= 0) {
        const y = row * laneHeight;
        if (y < top()) box.scrollTop = y;
        if (y + laneHeight > top() + height - axis) box.scrollTop = y + laneHeight - height + axis;
      }
      const [begin, end] = [lane.at[at], lane.at[at] + lane.us[at]];
      const wide = closer ? Math.max((end - begin) * 6, 200) : range[1] - range[0];
      if (closer || begin < range[0] || begin > range[1]) setRange((begin + end) / 2 - wide / 2, (begin + end) / 2 + wide / 2);
    }
    made.addEventListener("keydown", (event) => {
      const { key, shiftKey } = event;
      if (key === "+" || key === "=") zoom(0.5, selected ? selected.lane.at[selected.at] : undefined);
      else if (key === "-") zoom(2);
      else if (key === "0" || key === "Home") setRange(...full);
      else if (shiftKey && key === "ArrowLeft") move(-0.2);
      else if (shiftKey && key === "ArrowRight") move(0.2);
      else if (key === "Escape") { selected = null; say(); }
      else if (key.startsWith("Arrow")) walk(key);
      else return;
      event.preventDefault();
      later();
    });
    function walk(key) {
      if (!visible.length) return;
      if (!selected || !visible.includes(selected.lane)) {
        const lane = visible[Math.min(visible.length - 1, Math.floor(top() / laneHeight))];
        selected = { lane, at: Math.min(lane.n - 1, firstAfter(lane.at, range[0])) };
      } else if (key === "ArrowLeft" || key === "ArrowRight") {
        selected.at = Math.max(0, Math.min(selected.lane.n - 1, selected.at + (key === "ArrowLeft" ? -1 : 1)));
      } else {
        const row = Math.max(0, Math.min(visible.length - 1, visible.indexOf(selected.lane) + (key === "ArrowUp" ? -1 : 1)));
        const lane = visible[row];
        const same = lane.comm === selected.lane.comm ? lane.number.indexOf(selected.lane.number[selected.at]) : -1;
        selected = { lane, at: same >= 0 ? same : Math.min(lane.n - 1, firstAfter(lane.at, selected.lane.at[selected.at])) };
      }
      reveal(selected, false);
      say();
    }

    const controls = document.getElementById("timeline-controls");
    const used = [...new Set(lanes.map((lane) => lane.commAt))];
    if (used.length > 1) {
      controls.append(choice("Communicator", [["all", `all ${used.length}`], ...used.map((at) => [at, commTitle(comms[at])])], (at) => {
        filter = at;
        selected = null;
        box.scrollTop = 0;
        layout();
        draw();
      }));
    }
    const button = (text, label, action) => el("button", { type: "button", "aria-label": label, title: label, onclick: action }, text);
    const shownRange = el("span", { class: "tag" });
    controls.append(el("span", { class: "buttons" }, button("+", "Zoom in", () => zoom(0.5)), button("−", "Zoom out", () => zoom(2)),
      button("◀", "Earlier", () => move(-0.4)), button("▶", "Later", () => move(0.4)), button("All", "Show all", () => setRange(...full))), shownRange);
    const sayRange = () => {
      const from = Math.max(range[0], whole[0]);
      const to = Math.min(range[1], whole[1]);
      const clock = new Date(t0Ms + from / 1000).toISOString().slice(11, 23);
      shownRange.replaceChildren(`${clock} UTC (${after(Math.round(from))}), ${duration((to - from) * 1000)} of ${duration(data.spanUs * 1000)}`);
    };
    listeners.push(["lanes", () => { sayRange(); later(); }]);
    sayRange();
    if (data.timeline.merge > 1) {
      legend.after(el("p", { class: "hint" }, `A bar is up to ${data.timeline.merge} consecutive operations of a rank, the same ones on all ranks: there are more than a page can show. The slowest operations are listed below, each by itself.`));
    }
    draws(() => { layout(); draw(); });
    NcclReport.drawn();

    /** What the ranks of a communicator did with this number: the size, the function, and the line that called it. */
    NcclReport.opAt = (comm, seq) => {
      for (const lane of lanes) {
        if (lane.commAt !== comm || lane.p2p !== (seq % 2 === 1)) continue;
        const at = lane.number.indexOf(Math.floor(seq / 2));
        if (at >= 0 && lane.ops[at] === 1) return { title: kindTitle(data.kinds[lane.kind[at]]), code: lane.code.length ? data.code[lane.code[at]] : null };
      }
      return null;
    };

    NcclReport.revealOp = ({ comm, rank, seq }) => {
      const lane = lanes.find((of) => of.commAt === comm && of.rank === rank && of.p2p === (seq % 2 === 1));
      if (!lane) return;
      // A bar may be several operations: the one that begins at this number, or the last before it.
      let at = -1;
      lane.number.forEach((number, of) => { if (number <= Math.floor(seq / 2) && (at < 0 || number >= lane.number[at])) at = of; });
      if (at < 0) return;
      filter = "all";
      const select = controls.querySelector("select");
      if (select) select.value = "all";
      layout();
      selected = { lane, at };
      reveal(selected, true);
      say();
      draw();
      document.getElementById("timeline").scrollIntoView();
      made.focus({ preventScroll: true });
    };
  }

  function rates() {
    const { widthUs, at, sent, planned } = data.rates;
    if (!sent.length) return;
    const to = document.getElementById("rates");
    const seconds = sent.map((_, span) => (at + span * widthUs) / 1e6);
    const perSecond = (values) => values.map((value) => value / (widthUs / 1e6));
    const isMeasured = sent.some((value) => value > 0);
    const show = (plot, value) => (value === null || value === undefined ? "–" : rate(value));
    let plot = null;
    let own = false;
    function make() {
      if (plot) plot.destroy();
      const line = { stroke: colour("soft"), grid: { stroke: colour("faint"), width: 1 }, ticks: { stroke: colour("faint"), width: 1 }, font: "11px system-ui, sans-serif" };
      const series = [{ label: "time", value: (_, value) => (value === null || value === undefined ? "–" : after(Math.round(value * 1e6))) }];
      const columns = [seconds];
      if (isMeasured) {
        series.push({ label: "sent, measured", stroke: colour("wait-1"), fill: `${colour("wait-1")}30`, width: 1.5, points: { show: false }, value: show, paths: uPlot.paths.stepped({ align: 1 }) });
        columns.push(perSecond(sent));
      }
      // NCCL plans much at a moment, and it is sent later: the legend brings it in.
      series.push({ label: isMeasured ? "to be sent, planned (click to show)" : "to be sent, planned", show: !isMeasured, stroke: colour("planned"), width: 1, points: { show: false }, value: show, paths: uPlot.paths.stepped({ align: 1 }) });
      columns.push(perSecond(planned));
      plot = new uPlot({
        width: Math.max(320, to.clientWidth), height: 150, series, cursor: { y: false, drag: { x: true, y: false } },
        scales: { x: { time: false, min: range[0] / 1e6, max: range[1] / 1e6 } },
        axes: [{ ...line, show: false }, { ...line, size: 118, label: "all links together", labelSize: 18, labelFont: "11px system-ui, sans-serif", values: (_, values) => values.map((value) => rate(value)) }],
        padding: [8, 0, 4, 0],
        hooks: {
          setScale: [(of, key) => {
            if (key !== "x" || own) return;
            const { min, max } = of.scales.x;
            if (min !== null && max !== null) setRange(min * 1e6, max * 1e6, "rates");
          }],
        },
      }, columns, to);
    }
    listeners.push(["rates", () => {
      own = true;
      plot.setScale("x", { min: range[0] / 1e6, max: range[1] / 1e6 });
      own = false;
    }]);
    draws(make);
    NcclReport.drawn();
    shown.rates = () => ({ widthUs, at: seconds.map((second) => Math.round(second * 1e6)), sent, planned });
  }

  NcclReport.timeline = () => {
    if (!lanes.length) {
      into("lanes", empty("No operation was recorded in the part that was chosen."));
      return;
    }
    rates();
    timeline();
    shown.timeline = () => ({
      merge: data.timeline.merge,
      lanes: lanes.map((lane) => ({ comm: lane.comm.name, rank: lane.rank, p2p: lane.p2p, at: [...lane.at], us: [...lane.us], number: [...lane.number],
        ops: [...lane.ops], measured: [...lane.measured], kind: [...lane.kind], waits: lane.waits.map((column) => (column ? [...column] : null)) })),
    });
  };
})();
