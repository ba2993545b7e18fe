// Matrices of ranks by ranks: traffic and delays.
"use strict";

(() => {
  const { data, comms, el, choice, canvas, colour, draws, commTitle, place, showTip, hideTip, empty, into, table, bytes, rate, count,
    duration, shown, sum } = NcclReport;

  function stops() {
    return [0, 1, 2, 3, 4].map((at) => {
      const hex = colour(`heat-${at}`).replace("#", "");
      return [0, 2, 4].map((from) => parseInt(hex.slice(from, from + 2), 16));
    });
  }
  function shade(scale, share) {
    const at = Math.max(0, Math.min(1, share)) * (scale.length - 1);
    const below = Math.min(scale.length - 2, Math.floor(at));
    const part = at - below;
    const mix = scale[below].map((from, channel) => Math.round(from + (scale[below + 1][channel] - from) * part));
    return `rgb(${mix.join(" ")})`;
  }

  /**
   * Draws a matrix. `ranks`: labels of rows and columns; `groups`: a number for each, those of a host are equal;
   * `cells`: a map from row * n + column to a value; `tell`: what the box beside the pointer has.
   */
  function matrix(to, { ranks, groups, cells, format, tell, title, rows, columns }) {
    const n = ranks.length;
    if (!n || !cells.size) {
      to.replaceChildren(empty(title));
      return;
    }
    const cell = Math.max(2, Math.min(34, Math.floor(440 / n)));
    const margin = 46;
    const [width, height] = [margin + cell * n + 12, margin + cell * n + 4];
    const made = el("canvas", { tabindex: 0, role: "img", "aria-label": title });
    const legend = el("canvas", { "aria-hidden": true });
    const highest = Math.max(...cells.values());
    const live = el("p", { class: "live", role: "status" });
    let at = null;
    const every = cell >= 15 ? 1 : 2 ** Math.ceil(Math.log2(26 / cell));

    function draw() {
      const context = canvas(made, width, height);
      const scale = stops();
      context.fillStyle = colour("panel");
      context.fillRect(margin, margin, cell * n, cell * n);
      const line = cell > 5 ? 1 : 0;
      for (const [key, value] of cells) {
        const [row, column] = [Math.floor(key / n), key % n];
        context.fillStyle = shade(scale, value > 0 ? 0.06 + 0.94 * (value / highest) : 0);
        context.fillRect(margin + column * cell, margin + row * cell, cell - line, cell - line);
      }
      context.fillStyle = colour("soft");
      context.font = "11px system-ui, sans-serif";
      context.textAlign = "center";
      for (let rank = 0; rank < n; rank += every) context.fillText(ranks[rank], margin + rank * cell + cell / 2, margin - 6);
      context.fillText(columns, margin + (n * cell) / 2, margin - 24);
      context.textAlign = "right";
      context.textBaseline = "middle";
      for (let rank = 0; rank < n; rank += every) context.fillText(ranks[rank], margin - 6, margin + rank * cell + cell / 2);
      context.save();
      context.translate(10, margin + (n * cell) / 2);
      context.rotate(-Math.PI / 2);
      context.textAlign = "center";
      context.fillText(rows, 0, 0);
      context.restore();
      // Between hosts.
      context.fillStyle = colour("line");
      for (let rank = 1; rank < n; rank += 1) {
        if (groups[rank] !== groups[rank - 1]) {
          context.fillRect(margin + rank * cell - 1, margin, 1, cell * n);
          context.fillRect(margin, margin + rank * cell - 1, cell * n, 1);
        }
      }
      if (at) {
        context.strokeStyle = colour("fault");
        context.lineWidth = 2;
        context.strokeRect(margin + at[1] * cell - 1, margin + at[0] * cell - 1, cell + 1, cell + 1);
      }
      const bar = canvas(legend, 160, 10);
      for (let x = 0; x < 160; x += 1) {
        bar.fillStyle = shade(scale, 0.06 + 0.94 * (x / 159));
        bar.fillRect(x, 0, 1, 10);
      }
    }
    function find(event) {
      const box = made.getBoundingClientRect();
      const [row, column] = [event.clientY - box.top, event.clientX - box.left].map((far) => Math.floor((far - margin) / cell));
      return row >= 0 && row < n && column >= 0 && column < n ? [row, column] : null;
    }
    made.addEventListener("mousemove", (event) => {
      const found = find(event);
      if (String(found) !== String(at)) { at = found; draw(); }
      if (found) showTip(event.clientX, event.clientY, ...tell(...found));
      else hideTip();
    });
    made.addEventListener("mouseleave", () => { at = null; hideTip(); draw(); });
    made.addEventListener("blur", () => { at = null; live.replaceChildren(); draw(); });
    made.addEventListener("keydown", (event) => {
      const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
      if (!moves[event.key]) return;
      event.preventDefault();
      const [row, column] = at || [0, -1];
      at = [Math.max(0, Math.min(n - 1, row + moves[event.key][0])), Math.max(0, Math.min(n - 1, column + moves[event.key][1]))];
      draw();
      live.textContent = tell(...at).map((part) => part.textContent).join(" · ");
    });
    to.replaceChildren(made, el("p", { class: "scale" }, "0", legend, format(highest)), live);
    draw();
    return draw;
  }

  const hostsOf = (comm, ranks) => ranks.map((rank) => { const known = comm.byRank.get(rank); return known ? known.host : -1; });

  function ranksOf(comm, others) {
    const all = new Set(comm.ranks.map((rank) => rank.rank));
    others.forEach((rank) => all.add(rank));
    // Small ones are shown whole, so that a rank that was not recorded is an empty row.
    if (comm.nRanks <= 64) for (let rank = 0; rank < comm.nRanks; rank += 1) all.add(rank);
    return [...all].filter((rank) => rank >= 0 && rank < comm.nRanks).sort((a, b) => a - b);
  }

  /** The traffic of a communicator, a row for each pair: by the sender, or where it was not recorded by the receiver. */
  function pairs(comm) {
    const found = new Map();
    for (const link of comm.links) {
      const sends = link.op === "SEND";
      const [from, to] = sends ? [link.rank, link.peer] : [link.peer, link.rank];
      if (!sends && comm.byRank.has(link.peer)) continue;
      found.set(`${from} ${to}`, { from, to, sends, link, planned: link.exact + link.capacity, isCapacity: link.capacity > 0,
        measured: link.sized ? link.bytes : null, messages: link.messages, ended: link.ended,
        rate: link.busyNs ? (link.moved / link.busyNs) * 1e9 : null });
    }
    return [...found.values()];
  }

  const TRAFFIC = {
    measured: { title: "Measured bytes", value: (pair) => pair.measured, format: bytes, missing: "No bytes were measured: record with --level steps. What goes over NVLink cannot be measured from outside." },
    planned: { title: "Planned bytes", value: (pair) => pair.planned, format: bytes, missing: "No traffic between ranks was recorded." },
    rate: { title: "Measured rate while busy", value: (pair) => pair.rate, format: rate, missing: "No message was measured to its end." },
    messages: { title: "Messages", value: (pair) => pair.messages, format: count, missing: "No traffic between ranks was recorded." },
  };

  function commChoice(controls, change, fits) {
    const fitting = comms.map((comm, at) => [at, comm]).filter(([, comm]) => fits(comm));
    const wanted = data.verdict.ranks.length ? data.verdict.ranks[0][0] : NcclReport.largest();
    const first = fitting.some(([at]) => at === wanted) ? wanted : fitting.length ? fitting[0][0] : null;
    if (fitting.length > 1) {
      const made = choice("Communicator", fitting.map(([at, comm]) => [at, commTitle(comm)]), (at) => change(comms[Number(at)]));
      made.querySelector("select").value = String(first);
      controls.append(made);
    }
    return first === null ? null : comms[first];
  }

  NcclReport.traffic = () => {
    const controls = document.getElementById("traffic-controls");
    let comm = commChoice(controls, (chosen) => { comm = chosen; draw(); }, (of) => of.links.length > 0);
    if (!comm) {
      into("traffic-matrix", empty("No traffic between ranks was recorded: recordings of --level api have calls only."));
      return;
    }
    let by = comms.some((of) => of.links.some((link) => link.sized)) ? "measured" : "planned";
    const select = choice("Show", Object.entries(TRAFFIC).map(([key, { title }]) => [key, title]), (key) => { by = key; draw(); });
    select.querySelector("select").value = by;
    controls.append(select);
    function draw() {
      const kind = TRAFFIC[by];
      const all = pairs(comm);
      const ranks = ranksOf(comm, all.flatMap((pair) => [pair.from, pair.to]));
      const place_ = new Map(ranks.map((rank, at) => [rank, at]));
      const byCell = new Map();
      const cells = new Map();
      for (const pair of all) {
        if (!place_.has(pair.from) || !place_.has(pair.to)) continue;
        const key = place_.get(pair.from) * ranks.length + place_.get(pair.to);
        byCell.set(key, pair);
        const value = kind.value(pair);
        if (value !== null) cells.set(key, value);
      }
      const tell = (row, column) => {
        const [from, to] = [ranks[row], ranks[column]];
        const pair = byCell.get(row * ranks.length + column);
        const head = [el("b", {}, `Rank ${from} to rank ${to}`), el("div", { class: "soft" }, `${place(comm, from)} → ${place(comm, to)}`)];
        if (!pair) return [...head, el("div", {}, "nothing was sent, or it was not recorded")];
        return [...head,
          el("div", {}, `planned ${pair.isCapacity ? "at most " : ""}${bytes(pair.planned)} in ${count(pair.messages)} messages`),
          el("div", {}, pair.measured === null ? "bytes were not measured" : `measured ${bytes(pair.measured)} in ${count(pair.link.sized)} messages, ${rate(pair.rate)} while busy`),
          el("div", { class: "soft" }, `${pair.link.transport || "transport not known"}${pair.sends ? "" : "; seen by the receiver, as the sender was not recorded"}`)];
      };
      const redraw = matrix(document.getElementById("traffic-matrix"), { ranks, groups: hostsOf(comm, ranks), cells, format: kind.format, tell,
        title: cells.size ? `${kind.title} from rank (row) to rank (column) of ${commTitle(comm)}` : kind.missing, rows: "from rank", columns: "to rank" });
      if (redraw) current = redraw;
      const pseudo = comm.links.filter((link) => link.peer >= comm.nRanks);
      into("traffic-table", table([
        { title: "From", value: (pair) => pair.from, number: true, show: (pair) => String(pair.from) },
        { title: "To", value: (pair) => pair.to, number: true, show: (pair) => String(pair.to) },
        { title: "Over", value: (pair) => pair.link.transport, show: (pair) => pair.link.transport },
        { title: "Planned", value: (pair) => pair.planned, number: true, show: (pair) => `${pair.isCapacity ? "≤ " : ""}${bytes(pair.planned)}` },
        { title: "Measured", value: (pair) => pair.measured, number: true, show: (pair) => bytes(pair.measured) },
        { title: "Rate while busy", value: (pair) => pair.rate, number: true, show: (pair) => rate(pair.rate) },
        { title: "Messages", value: (pair) => pair.messages, number: true, show: (pair) => count(pair.messages) },
      ], all, { sort: 3 }),
      pseudo.length ? el("p", { class: "hint" }, `${bytes(sum(pseudo.map((link) => link.exact + link.capacity)))} more go to the network's own reduction or NVLS, which are no ranks.`) : null);
    }
    let current = () => {};
    draw();
    draws(() => current());
    shown.traffic = () => comms.map((of) => ({ comm: of.name, pairs: pairs(of).map(({ from, to, planned, measured, messages, rate: at }) => ({ from, to, planned, measured, messages, rate: at })) }));
  };

  const DELAYS = {
    waits: { title: "Data and room", value: (delay) => delay.dataNs + delay.slotNs },
    data: { title: "Waiting for peer's data", value: (delay) => delay.dataNs },
    room: { title: "Room that the peer had not made", value: (delay) => delay.slotNs },
    network: { title: "Messages in the network", value: (delay) => delay.networkNs },
  };

  NcclReport.delays = () => {
    const controls = document.getElementById("delay-controls");
    const missing = "Who waited for whom was not measured: it is there for recordings of --level steps, of what goes over the network.";
    let comm = commChoice(controls, (chosen) => { comm = chosen; draw(); }, (of) => of.delays.length > 0);
    shown.delays = () => comms.map((of) => ({ comm: of.name, delays: of.delays }));
    if (!comm) {
      into("delay-matrix", empty(missing));
      return;
    }
    let by = "waits";
    controls.append(choice("Show", Object.entries(DELAYS).map(([key, { title }]) => [key, title]), (key) => { by = key; draw(); }));
    let current = () => {};
    function draw() {
      const kind = DELAYS[by];
      const ranks = ranksOf(comm, comm.delays.flatMap((delay) => [delay.rank, delay.peer]));
      const place_ = new Map(ranks.map((rank, at) => [rank, at]));
      const byCell = new Map();
      const cells = new Map();
      for (const delay of comm.delays) {
        if (!place_.has(delay.rank) || !place_.has(delay.peer)) continue;
        const key = place_.get(delay.rank) * ranks.length + place_.get(delay.peer);
        byCell.set(key, delay);
        if (kind.value(delay) > 0) cells.set(key, kind.value(delay));
      }
      const tell = (row, column) => {
        const [rank, peer] = [ranks[row], ranks[column]];
        const delay = byCell.get(row * ranks.length + column);
        const head = [el("b", {}, `Rank ${rank} waits for rank ${peer}`), el("div", { class: "soft" }, `${place(comm, rank)}; ${place(comm, peer)}`)];
        if (!delay) return [...head, el("div", {}, "no wait")];
        return [...head, el("div", {}, `waiting for peer's data: ${duration(delay.dataNs)}`), el("div", {}, `waiting for peer's buffer: ${duration(delay.slotNs)}`),
          el("div", {}, `messages to it in the network: ${duration(delay.networkNs)}`)];
      };
      const redraw = matrix(document.getElementById("delay-matrix"), { ranks, groups: hostsOf(comm, ranks), cells, format: duration, tell,
        title: cells.size ? `${kind.title}: how long a rank (row) waited for a peer (column) of ${commTitle(comm)}` : "Nothing of this kind.",
        rows: "rank that waits", columns: "for rank" });
      if (redraw) current = redraw;
      into("delay-table", table([
        { title: "Rank", value: (delay) => delay.rank, number: true, show: (delay) => String(delay.rank) },
        { title: "waits for", value: (delay) => delay.peer, number: true, show: (delay) => String(delay.peer) },
        { title: "Data not there", value: (delay) => delay.dataNs, number: true, show: (delay) => duration(delay.dataNs) },
        { title: "No room", value: (delay) => delay.slotNs, number: true, show: (delay) => duration(delay.slotNs) },
        { title: "Both", value: (delay) => delay.dataNs + delay.slotNs, number: true, show: (delay) => duration(delay.dataNs + delay.slotNs) },
        { title: "In the network", value: (delay) => delay.networkNs, number: true, show: (delay) => duration(delay.networkNs) },
      ], comm.delays, { sort: 4 }),
      el("p", { class: "hint" }, `${count(comm.messagesJudged)} messages were judged${comm.messagesNotJudged ? `; of ${count(comm.messagesNotJudged)} more it is not known what their patterns wait for` : ""}. Times of many messages and channels add up to more than the time that went by.`));
    }
    draw();
    draws(() => current());
  };

  NcclReport.pairs = pairs;
})();
