// Rings and trees over hosts and GPUs.
"use strict";

(() => {
  const { data, comms, el, svg, choice, commTitle, place, showTip, hideTip, empty, into, clean, shown } = NcclReport;
  const TAU = 2 * Math.PI;
  const ranges = (numbers) => {
    const parts = [];
    for (const number of numbers) {
      const last = parts[parts.length - 1];
      if (last && last[1] + 1 === number) last[1] = number;
      else parts.push([number, number]);
    }
    return parts.map(([from, to]) => (from === to ? `${from}` : `${from}–${to}`)).join(", ");
  };
  const channels = (shape) => `${shape.channels.length === 1 ? "channel" : "channels"} ${ranges(shape.channels)}`;

  const hostColour = (host) => (host === null ? "none" : `var(--host-${host % 8})`);
  const hostOf = (comm, rank) => { const known = comm.byRank.get(rank); return known ? known.host : null; };

  function edgesOf(shape) {
    if (shape.edges) return shape.edges;
    const edges = [];
    for (const path of shape.paths) {
      for (let at = 0; at + 1 < path.length; at += 1) edges.push([path[at], path[at + 1]]);
    }
    if (shape.closed && shape.paths[0].length > 1) edges.push([shape.paths[0][shape.paths[0].length - 1], shape.paths[0][0]]);
    return edges;
  }

  function node(comm, rank, x, y, radius, marked) {
    const host = hostOf(comm, rank);
    const tip = (event) => showTip(event.clientX, event.clientY, ...told(comm, rank));
    const made = svg("circle", { cx: x, cy: y, r: radius, onmousemove: tip, onmouseleave: hideTip,
      class: `node${host === null ? " missing" : ""}${marked.has(rank) ? " marked" : ""}` });
    if (host !== null) made.style.fill = hostColour(host);
    return made;
  }

  function told(comm, rank) {
    const known = comm.byRank.get(rank);
    const lines = [el("b", {}, `Rank ${rank} of ${commTitle(comm)}`), el("div", {}, place(comm, rank))];
    if (known) {
      const process = [`process ${known.pid}`, known.busId, known.jobRank === null ? null : `job rank ${known.jobRank}`, known.node === null ? null : `node ${known.node}`];
      lines.push(el("div", { class: "soft" }, process.filter(Boolean).join(" · ")));
    }
    return lines;
  }

  /** Ranks around a circle, those of a host together. */
  function circle(comm, edges, title) {
    const ranks = [...new Set([...comm.ranks.map((rank) => rank.rank), ...edges.flat()])];
    const group = (rank) => { const host = hostOf(comm, rank); return host === null ? Infinity : host; };
    ranks.sort((a, b) => group(a) - group(b) || a - b);
    const groups = new Map();
    ranks.forEach((rank) => groups.set(group(rank), [...(groups.get(group(rank)) || []), rank]));
    const gaps = groups.size > 1 ? groups.size : 0;
    const gap = 0.6;
    const slots = ranks.length + gaps * gap;
    // Few ranks need no large circle.
    const radius = Math.max(64, Math.min(190, ranks.length * 13));
    const middle = radius + 92;
    const label = (host) => {
      const name = clean(data.hosts[host]) || "host not known";
      return name.length > 16 ? `${name.slice(0, 15)}…` : name;
    };
    // Hosts are named outside of the circle, on both sides of it.
    const longest = Math.max(0, ...[...groups.keys()].filter((host) => host !== Infinity).map((host) => label(host).length));
    const [wide, high] = [radius + 50 + 8 * longest, radius + 62];
    const dot = Math.max(3.5, Math.min(16, (radius * TAU) / slots / 2.6));
    const at = new Map();
    const places = new Map();
    let slot = 0;
    const arcs = [];
    for (const [host, members] of groups) {
      const begin = slot;
      for (const rank of members) {
        const angle = -TAU / 4 + (TAU * (slot + 0.5)) / slots;
        at.set(rank, angle);
        places.set(rank, [middle + radius * Math.cos(angle), middle + radius * Math.sin(angle)]);
        slot += 1;
      }
      arcs.push([host, -TAU / 4 + (TAU * begin) / slots, -TAU / 4 + (TAU * slot) / slots]);
      if (gaps) slot += gap;
    }
    const picture = svg("svg", { viewBox: `${middle - wide} ${middle - high} ${2 * wide} ${2 * high}`, width: 2 * wide, height: 2 * high,
      role: "img", "aria-label": title });
    picture.append(svg("defs", {}, arrow("arrow", 5)));
    const isInside = dot >= 8;
    const outer = radius + dot + (isInside ? 9 : 24);
    for (const [host, from, to] of arcs) {
      if (host === Infinity) continue;
      const pad = Math.min(0.02, (to - from) / 10);
      const point = (angle, far) => `${(middle + far * Math.cos(angle)).toFixed(1)} ${(middle + far * Math.sin(angle)).toFixed(1)}`;
      const large = to - from > Math.PI ? 1 : 0;
      const whole = to - from > TAU - 0.01;
      const path = whole
        ? `M ${point(0, outer)} A ${outer} ${outer} 0 1 1 ${point(Math.PI, outer)} A ${outer} ${outer} 0 1 1 ${point(0, outer)}`
        : `M ${point(from + pad, outer)} A ${outer} ${outer} 0 ${large} 1 ${point(to - pad, outer)}`;
      const arc = svg("path", { d: path, fill: "none", "stroke-width": 4, opacity: 0.75 });
      arc.style.stroke = hostColour(host);
      picture.append(arc);
      const middleOf = whole ? -TAU / 4 : (from + to) / 2;
      const [x, y] = [middle + (outer + 12) * Math.cos(middleOf), middle + (outer + 12) * Math.sin(middleOf)];
      const anchor = Math.abs(Math.cos(middleOf)) < 0.25 ? "middle" : Math.cos(middleOf) > 0 ? "start" : "end";
      picture.append(svg("text", { x, y: y + 4 * (1 + Math.sin(middleOf)), "text-anchor": anchor, class: "soft" }, label(host)));
    }
    const shapes = svg("g");
    const both = new Set(edges.map(([from, to]) => `${from} ${to}`));
    for (const [from, to] of edges) {
      if (!places.has(from) || !places.has(to)) continue;
      const [[x1, y1], [x2, y2]] = [places.get(from), places.get(to)];
      const turn = Math.abs(at.get(to) - at.get(from));
      const near = Math.min(turn, TAU - turn) / Math.PI;
      // Neighbours are joined by a short bow, others through the middle.
      const pull = near < 3 / slots ? 1 : 1 - 0.75 * Math.min(1, near * 1.6);
      // The way there and the way back are two lines.
      const aside = both.has(`${to} ${from}`) ? 0.09 : 0;
      const [sx, sy] = [(y1 - y2) * aside, (x2 - x1) * aside];
      const [cx, cy] = [middle + ((x1 + x2) / 2 - middle) * pull + sx, middle + ((y1 + y2) / 2 - middle) * pull + sy];
      const trim = (x, y) => { const far = Math.hypot(x - cx, y - cy) || 1; return [x + ((cx - x) / far) * (dot + 1), y + ((cy - y) / far) * (dot + 1)]; };
      const [[bx, by], [ex, ey]] = [trim(x1, y1), trim(x2, y2)];
      const between = hostOf(comm, from) !== hostOf(comm, to);
      shapes.append(svg("path", { d: `M ${bx.toFixed(1)} ${by.toFixed(1)} Q ${cx.toFixed(1)} ${cy.toFixed(1)} ${ex.toFixed(1)} ${ey.toFixed(1)}`,
        class: `edge${between ? " between" : ""}`, "marker-end": "url(#arrow)" }));
    }
    picture.append(shapes);
    const marked = markedRanks(comm);
    for (const [rank, [x, y]] of places) {
      picture.append(node(comm, rank, x, y, dot, marked));
      if (isInside) {
        const text = svg("text", { x, y: y + 4, "text-anchor": "middle", "pointer-events": "none" }, String(rank));
        if (hostOf(comm, rank) !== null) text.style.fill = "#fff";
        picture.append(text);
      } else if (dot >= 4.5 || rank % 8 === 0) {
        const angle = at.get(rank);
        const far = radius + dot + 10;
        picture.append(svg("text", { x: middle + far * Math.cos(angle), y: middle + far * Math.sin(angle) + 4, "text-anchor": "middle", class: "soft" }, String(rank)));
      }
    }
    return picture;
  }

  function arrow(id, size) {
    const head = svg("marker", { id, viewBox: "0 0 8 8", refX: 6, refY: 4, markerWidth: size, markerHeight: size, orient: "auto-start-reverse", markerUnits: "strokeWidth" },
      svg("path", { d: "M 0 0.5 L 7 4 L 0 7.5 z" }));
    head.firstChild.style.fill = "var(--soft)";
    return head;
  }

  /** A tree from its root down. */
  function tree(comm, edges, title) {
    const children = new Map();
    const parents = new Map(edges);
    const ranks = [...new Set(edges.flat())].sort((a, b) => a - b);
    edges.forEach(([child, parent]) => children.set(parent, [...(children.get(parent) || []), child].sort((a, b) => a - b)));
    const places = new Map();
    let leaf = 0;
    let deepest = 0;
    // Without recursion: a chain of a thousand ranks is a tree, too.
    for (const root of ranks.filter((rank) => !parents.has(rank))) {
      const stack = [[root, 0, false]];
      while (stack.length) {
        const [rank, depth, isDone] = stack.pop();
        const below = (children.get(rank) || []).filter((child) => parents.get(child) === rank);
        if (!isDone && places.has(rank)) continue;
        deepest = Math.max(deepest, depth);
        if (!isDone && below.length) {
          places.set(rank, [0, depth]);
          stack.push([rank, depth, true]);
          below.slice().reverse().forEach((child) => stack.push([child, depth + 1, false]));
        } else if (isDone) {
          const xs = below.map((child) => (places.get(child) || [0])[0]);
          places.set(rank, [(Math.min(...xs) + Math.max(...xs)) / 2, depth]);
        } else {
          places.set(rank, [leaf, depth]);
          leaf += 1;
        }
      }
    }
    const wide = Math.max(1, leaf);
    const dot = Math.max(4, Math.min(14, 520 / wide / 2.4, 520 / (deepest + 1) / 2.6));
    const [width, height] = [560, Math.max(160, Math.min(620, (deepest + 1) * (dot * 2 + 26) + 30))];
    const x = (place) => ((place[0] + 0.5) / wide) * (width - 40) + 20;
    const y = (place) => 24 + (deepest ? (place[1] / deepest) * (height - 48) : (height - 48) / 2);
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": title });
    picture.append(svg("defs", {}, arrow("arrow", 5)));
    const marked = markedRanks(comm);
    for (const [child, parent] of edges) {
      if (!places.has(child) || !places.has(parent)) continue;
      const [from, to] = [places.get(child), places.get(parent)];
      const [dx, dy] = [x(to) - x(from), y(to) - y(from)];
      const far = Math.hypot(dx, dy) || 1;
      const between = hostOf(comm, child) !== hostOf(comm, parent);
      picture.append(svg("path", { d: `M ${x(from) + (dx / far) * (dot + 1)} ${y(from) + (dy / far) * (dot + 1)} L ${x(to) - (dx / far) * (dot + 4)} ${y(to) - (dy / far) * (dot + 4)}`,
        class: `edge${between ? " between" : ""}`, "marker-end": "url(#arrow)" }));
    }
    for (const [rank, place_] of places) {
      picture.append(node(comm, rank, x(place_), y(place_), dot, marked));
      const text = svg("text", { x: x(place_) + (dot < 9 ? dot + 3 : 0), y: y(place_) + 4, "text-anchor": dot < 9 ? "start" : "middle", "pointer-events": "none" }, String(rank));
      if (dot >= 9 && hostOf(comm, rank) !== null) text.style.fill = "#fff";
      picture.append(text);
    }
    return picture;
  }

  function markedRanks(comm) {
    return new Set(data.verdict.ranks.filter(([of]) => comms[of] === comm).map(([, rank]) => rank));
  }

  NcclReport.topology = () => {
    if (!comms.length) {
      into("topology", empty("No communicator was recorded in the part that was chosen."));
      return;
    }
    const first = data.verdict.ranks.length ? data.verdict.ranks[0][0] : largest();
    const controls = document.getElementById("topology-controls");
    let comm = comms[first];
    let shape = null;
    const shapeHolder = el("span");
    function shapesOf() {
      const rings = comm.rings.map((ring) => [`Ring, ${channels(ring)}`, ring]);
      const trees = comm.trees.map((of) => [`Tree, ${channels(of)}`, of]);
      return [...rings, ...trees];
    }
    function chooseComm() {
      const shapes = shapesOf();
      shape = shapes.length ? shapes[0] : null;
      shapeHolder.replaceChildren();
      if (shapes.length > 1) {
        shapeHolder.append(choice("Shape", shapes.map(([title], at) => [at, title]), (at) => { shape = shapes[Number(at)]; draw(); }));
      }
      draw();
      NcclReport.rankTable(comm);
    }
    function draw() {
      const title = shape ? `${shape[0]} of ${commTitle(comm)}` : `Ranks of ${commTitle(comm)}`;
      const edges = shape ? edgesOf(shape[1]) : [];
      const note = shape ? (shape[1].paths && !shape[1].closed ? " Parts of it are not known, as not all ranks were recorded." : "")
        : " No operation told its rings or trees.";
      into("topology", shape && shape[1].edges ? tree(comm, edges, title) : circle(comm, edges, title), el("p", { class: "hint" }, note ? `${title}.${note}` : title));
    }
    if (comms.length > 1) {
      const options = comms.map((of, at) => [at, `${commTitle(of)}: ${of.ranks.length} of ${of.nRanks} ranks`]);
      const made = choice("Communicator", options, (at) => { comm = comms[Number(at)]; chooseComm(); });
      made.querySelector("select").value = String(first);
      controls.append(made);
    }
    controls.append(shapeHolder);
    chooseComm();
    shown.topology = () => comms.map((of) => ({ comm: of.name, rings: of.rings.map((ring) => edgesOf(ring)), trees: of.trees.map((of_) => edgesOf(of_)) }));
  };

  /** The communicator with most operations. */
  function largest() {
    let best = 0;
    comms.forEach((comm, at) => { if (comm.ranks.length > comms[best].ranks.length) best = at; });
    return best;
  }
  NcclReport.largest = largest;
})();
