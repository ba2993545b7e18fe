// Tables: ranks, links, operations, sizes, iterations, lines of code, losses.
"use strict";

(() => {
  const { data, comms, el, name, bytes, rate, count, size, duration, micros, after, wall, sum, jobTitle, commTitle, place, kindTitle, table, empty, into,
    waitBar, choice, draws, colour, shown, t0Ms } = NcclReport;
  const isLarge = comms.length > 1;
  const commColumn = (of) => (isLarge ? [{ title: "Communicator", value: (row) => commTitle(of(row)), show: (row) => name(commTitle(of(row))) }] : []);

  NcclReport.rankTable = (comm) => {
    const missing = comm.nRanks - comm.ranks.length;
    into("ranks", table([
      { title: "Rank", value: (rank) => rank.rank, number: true, show: (rank) => String(rank.rank) },
      { title: "Host", value: (rank) => data.hosts[rank.host], show: (rank) => name(data.hosts[rank.host] || "–") },
      { title: "GPU", value: (rank) => rank.gpu, show: (rank) => [rank.gpu === null ? "–" : rank.gpu, rank.busId ? [" ", el("span", { class: "tag mono" }, rank.busId)] : null] },
      { title: "Process", value: (rank) => rank.pid, number: true, show: (rank) => String(rank.pid) },
      { title: "Job rank", value: (rank) => rank.jobRank, number: true, show: (rank) => (rank.jobRank === null ? "–" : String(rank.jobRank)) },
      { title: "Collectives", value: (rank) => rank.collectives, number: true, show: (rank) => count(rank.collectives) },
      { title: "Sends, receives", value: (rank) => rank.p2p, number: true, show: (rank) => count(rank.p2p) },
      ...(comm.ranks.some((rank) => rank.calls) ? [{ title: "API calls", value: (rank) => rank.calls, number: true, show: (rank) => count(rank.calls) }] : []),
    ], comm.ranks, { sort: 0, down: false, first: 16 }),
    el("p", { class: "hint" }, `${comm.ranks.length} of ${comm.nRanks} ranks were recorded. ${missing > 0 ? "The others have a dashed circle." : ""} Its commHash is `, el("code", {}, comm.name), "."));
  };

  function slowRanks() {
    const rows = comms.flatMap((comm) => comm.ranks.filter((rank) => rank.ownGpuNs !== null).map((rank) => {
      const waited = sum(comm.delays.filter((delay) => delay.rank === rank.rank).map((delay) => delay.dataNs + delay.slotNs));
      const waitedFor = sum(comm.delays.filter((delay) => delay.peer === rank.rank).map((delay) => delay.dataNs + delay.slotNs));
      const network = sum(comm.delays.filter((delay) => delay.rank === rank.rank).map((delay) => delay.networkNs));
      return { comm, rank, waited, waitedFor, network };
    }));
    shown.ranks = () => rows.map(({ comm, rank, waited, waitedFor, network }) => ({ comm: comm.name, rank: rank.rank, own: rank.ownGpuNs, waited, waitedFor, network }));
    if (!rows.length) {
      into("slow-ranks", empty("Waits were not measured: they are there for recordings of --level steps, of what goes over the network."));
      return;
    }
    into("slow-ranks", table([
      ...commColumn((row) => row.comm),
      { title: "Rank", value: (row) => row.rank.rank, number: true, show: (row) => String(row.rank.rank) },
      { title: "Where", value: (row) => place(row.comm, row.rank.rank), show: (row) => name(place(row.comm, row.rank.rank)) },
      { title: "Others waited for it", value: (row) => row.waitedFor, number: true, show: (row) => duration(row.waitedFor) },
      { title: "It waited for others", value: (row) => row.waited, number: true, show: (row) => duration(row.waited) },
      { title: "Its own GPU", value: (row) => row.rank.ownGpuNs, number: true, show: (row) => duration(row.rank.ownGpuNs) },
      { title: "Its messages in the network", value: (row) => row.network, number: true, show: (row) => duration(row.network) },
    ], rows, { sort: isLarge ? 3 : 2, first: 8 }),
    el("p", { class: "hint" }, "All messages together. A rank for which others wait while its own GPU takes long is slow itself; one that also waits passes on a wait of another's."));
  }

  function slowLinks() {
    const rows = comms.flatMap((comm) => comm.links.filter((link) => link.op === "SEND" && link.ended > 0).map((link) => ({ comm, link })));
    shown.links = () => comms.flatMap((comm) => comm.links.map((link) => ({ comm: comm.name, ...link })));
    if (!rows.length) {
      into("slow-links", empty("No message was measured: times of links are there for recordings of --level steps, of what goes over the network."));
      return;
    }
    const speed = (link) => (link.busyNs ? (link.moved / link.busyNs) * 1e9 : null);
    into("slow-links", table([
      ...commColumn((row) => row.comm),
      { title: "Link", value: (row) => row.link.rank * 1e6 + row.link.peer, show: (row) => el("span", { class: "kind" }, `${row.link.rank} → ${row.link.peer}`) },
      { title: "Over", value: (row) => row.link.transport, show: (row) => row.link.transport },
      { title: "From, to", value: (row) => place(row.comm, row.link.rank), show: (row) => [name(place(row.comm, row.link.rank)), " → ", name(place(row.comm, row.link.peer))] },
      { title: "Rate while busy", value: (row) => speed(row.link), number: true, show: (row) => rate(speed(row.link)) },
      { title: "Bytes", value: (row) => row.link.moved, number: true, show: (row) => bytes(row.link.moved) },
      { title: "Messages", value: (row) => row.link.ended, number: true, show: (row) => count(row.link.ended) },
      { title: "Median", value: (row) => row.link.p50Ns, number: true, show: (row) => duration(row.link.p50Ns) },
      { title: "99 %", value: (row) => row.link.p99Ns, number: true, show: (row) => duration(row.link.p99Ns) },
      { title: "Longest", value: (row) => row.link.maxNs, number: true, show: (row) => duration(row.link.maxNs) },
      { title: "In the network", value: (row) => row.link.waitsNs[3], number: true, show: (row) => duration(row.link.waitsNs[3]) },
      { title: "Waits", show: (row) => waitBar(row.link.waitsNs) },
    ], rows, { sort: isLarge ? 10 : 9, first: 10 }),
    el("p", { class: "hint" }, "Sends of recorded ranks. Median, 99 % and longest are times of a message, from when it could begin to its end; medians are right to within 3 %."));
  }

  function slowOps() {
    shown.longest = () => data.longest;
    if (!data.longest.length) {
      into("slow-ops", empty("No operation was measured."));
      return;
    }
    into("slow-ops", table([
      { title: "Operation", value: (op) => kindTitle(data.kinds[op.kind]), show: (op) => kindTitle(data.kinds[op.kind]) },
      ...commColumn((op) => comms[op.comm]),
      { title: "Rank", value: (op) => op.rank, number: true, show: (op) => String(op.rank) },
      { title: "Number", value: (op) => op.seq, number: true, show: (op) => `${op.seq % 2 ? "p2p " : ""}${Math.floor(op.seq / 2)}` },
      { title: "Begins", value: (op) => op.at, number: true, show: (op) => after(op.at) },
      { title: "Takes", value: (op) => op.us, number: true, show: (op) => micros(op.us) },
      { title: "Waits", show: (op) => waitBar(op.waits) },
      ...(data.code.length ? [{ title: "Line of code", show: (op) => (op.code === null ? "–" : el("span", { class: "mono name" }, shortLine(data.code[op.code]))) }] : []),
      { title: "", show: (op) => el("button", { type: "button", onclick: () => NcclReport.revealOp(op) }, "Show") },
    ], data.longest, { sort: isLarge ? 5 : 4, first: 8 }));
  }

  function shortLine(code) {
    const [path, rest] = code.line.split(/:(?=\d+ in )/);
    return rest === undefined ? code.line : `${path.split("/").pop()}:${rest}`;
  }

  function sizes() {
    const rows = data.kinds.filter((kind) => kind.ops > 0);
    shown.kinds = () => rows;
    if (!rows.length) {
      into("size-table", empty("No operation was recorded in the part that was chosen."));
      return;
    }
    const speed = (kind) => (kind.bytes && kind.p50Ns ? (kind.bytes / kind.p50Ns) * 1e9 : null);
    const anyMeasured = rows.some((kind) => kind.measured);
    into("size-table", table([
      { title: "Operation", value: (kind) => kind.function, show: (kind) => [kind.function, kind.runsAs ? el("div", { class: "tag" }, `runs as ${kind.runsAs}`) : null] },
      { title: "Size", value: (kind) => kind.bytes, number: true, show: (kind) => (kind.bytes === null ? "–" : `${kind.rounded ? "≤ " : ""}${size(kind.bytes)}`) },
      { title: "Type", value: (kind) => kind.dtype, show: (kind) => [kind.dtype, kind.redOp].filter(Boolean).join(" ") || "–" },
      { title: "Algorithm", value: (kind) => kind.algorithm, show: (kind) => kind.algorithm || "–" },
      { title: "Protocol", value: (kind) => kind.protocol, show: (kind) => kind.protocol || "–" },
      { title: "Channels", value: (kind) => kind.channels, number: true, show: (kind) => kind.channels || "–" },
      { title: rows.every((kind) => kind.isCall) ? "Calls" : "Operations", value: (kind) => kind.ops, number: true, show: (kind) => count(kind.ops) },
      ...(anyMeasured ? [
        { title: "Measured", value: (kind) => kind.measured, number: true, show: (kind) => count(kind.measured) },
        { title: "Median", value: (kind) => kind.p50Ns, number: true, show: (kind) => duration(kind.p50Ns) },
        { title: "99 %", value: (kind) => kind.p99Ns, number: true, show: (kind) => duration(kind.p99Ns) },
        { title: "Longest", value: (kind) => kind.maxNs, number: true, show: (kind) => duration(kind.maxNs) },
        { title: "All together", value: (kind) => kind.totalNs, number: true, show: (kind) => duration(kind.totalNs) },
        { title: "Size/median", value: speed, number: true, show: (kind) => rate(speed(kind)) },
        { title: "Waits", show: (kind) => waitBar(kind.waitsNs) },
      ] : []),
    ], rows, { sort: anyMeasured ? 11 : 6, first: 12 }));
  }

  function iterations() {
    const all = data.iterations.slice().sort((a, b) => a.comm - b.comm || a.rank - b.rank);
    const found = all.filter((process) => process.iterations > 0);
    shown.iterations = () => all;
    // The job's own iterations can have the sequence of a process several times.
    const jobs = data.jobs.flatMap((job) => job.iterations.filter((of) => of.series.n.length > 0).map((of) => [job, of.series]));
    if (!found.length && !jobs.length) {
      document.getElementById("iteration-title").remove();
      into("iteration-table", empty(all.length ? "No part of the collectives recurs often enough to be an iteration." : "No collective was recorded in the part that was chosen."));
      return;
    }
    const title = (of) => `rank ${of.rank} of ${commTitle(comms[of.comm])}, ${place(comms[of.comm], of.rank)}`;
    const several = (job) => jobs.filter(([other]) => other === job).length > 1;
    const all_series = jobs.length ? jobs.map(([job, of], at) => [of, `${jobTitle(job)}${several(job) ? ` (${at + 1})` : ""}`]) : found.map((of) => [of, title(of)]);
    let [process] = all_series[0];
    if (all_series.length > 1) {
      document.getElementById("iteration-controls").append(choice(jobs.length ? "Iterations of" : "Process", all_series.map(([, words], at) => [at, words]), (at) => { [process] = all_series[Number(at)]; make(); }));
    }
    const to = document.getElementById("iteration-chart");
    let plot = null;
    function make() {
      if (plot) plot.destroy();
      const font = "11px system-ui, sans-serif";
      const line = { stroke: colour("soft"), grid: { stroke: colour("faint"), width: 1 }, ticks: { stroke: colour("faint"), width: 1 }, font, labelSize: 18, labelFont: font };
      const show = (_, value) => (value === null || value === undefined ? "–" : micros(value));
      const together = process.n.some((n) => n > 1);
      const series = [{ label: "begins", value: (_, value) => (value === null || value === undefined ? "–" : after(Math.round(value * 1e6))) },
        { label: together ? "mean" : "an iteration takes", stroke: colour("wait-1"), width: 1.5, points: { size: 4 }, value: show }];
      const columns = [process.at.map((us) => us / 1e6), process.meanUs];
      if (together) {
        series.push({ label: "longest", stroke: colour("wait-4"), width: 1, points: { show: false }, value: show });
        columns.push(process.maxUs);
      }
      plot = new uPlot({
        width: Math.max(240, to.clientWidth), height: 210, series, cursor: { y: false, drag: { x: true, y: false } },
        scales: { x: { time: false }, y: { range: (_, low, high) => [0, (high || 1) * 1.08] } },
        axes: [{ ...line, size: 34, label: `time since ${new Date(t0Ms).toISOString().slice(11, 19)} UTC`, values: (_, values) => values.map((value) => `${value} s`) },
          { ...line, size: 74, label: "time of an iteration", values: (_, values) => values.map((value) => micros(value)) }],
      }, columns, to);
    }
    draws(make);
    into("iteration-table",
      jobs.length ? el("p", { class: "about" }, "Sequences of collectives that recur in each process. An iteration can have a sequence several times, as layers and parts of a gradient are alike.") : null,
      table([
        { title: "Process", value: title, show: (of) => name(title(of)) },
        { title: "Collectives in one", value: (of) => of.period, number: true, show: (of) => (of.period === null ? "none found" : count(of.period)) },
        { title: jobs.length ? "Sequences" : "Iterations", value: (of) => of.iterations, number: true, show: (of) => count(of.iterations) },
        { title: "Median", value: (of) => of.p50Us, number: true, show: (of) => micros(of.p50Us) },
        { title: "99 %", value: (of) => of.p99Us, number: true, show: (of) => micros(of.p99Us) },
      ], all, { first: 8 }));
  }

  function code() {
    shown.code = () => data.code;
    if (!data.code.length) {
      into("code-table", empty("Call stacks were not recorded: `ncclflow record --stacks` records them."));
      return;
    }
    const line = (row) => (row.frames.length > 1
      ? el("details", {}, el("summary", { class: "mono name" }, row.line), row.frames.map((frame) => el("div", { class: "mono name" }, frame)))
      : el("span", { class: "mono name" }, row.line));
    const anyMeasured = data.code.some((row) => row.totalNs);
    into("code-table", table([
      { title: "Line", value: (row) => row.line, show: line },
      { title: "Functions", value: (row) => row.functions.join(" "), show: (row) => row.functions.join(", ") },
      { title: "Operations", value: (row) => row.ops, number: true, show: (row) => count(row.ops) },
      ...(data.code.some((row) => row.calls) ? [{ title: "API calls", value: (row) => row.calls, number: true, show: (row) => count(row.calls) }] : []),
      { title: "Bytes called with", value: (row) => row.bytes, number: true, show: (row) => bytes(row.bytes) },
      ...(anyMeasured ? [
        { title: "Time, all together", value: (row) => row.totalNs, number: true, show: (row) => duration(row.totalNs) },
        { title: "Waits", show: (row) => waitBar(row.waitsNs) },
      ] : []),
    ], data.code, { sort: anyMeasured ? 4 + (data.code.some((row) => row.calls) ? 1 : 0) : 2, first: 10 }),
    el("p", { class: "hint" }, "The innermost line that is of no installed library; the whole stack is below it. Operations of all ranks."));
  }

  function losses() {
    const said = [...data.notSeen, ...data.summedUp];
    into("not-seen", said.length ? el("ul", {}, said.map((sentence) => el("li", {}, name(sentence)))) : empty("Nothing is missing that ncclflow knows of, and nothing was summed up."));
    const lost = (source) => source.loss.filter(([, value]) => value > 0);
    into("sources", table([
      { title: "Recording", value: (source) => source.path, show: (source) => name(source.path) },
      { title: "Host", value: (source) => source.host, show: (source) => name(source.host || "–") },
      { title: "Level", value: (source) => source.level, show: (source) => name(source.level || "–") },
      { title: "From", value: (source) => source.fromUnixMs, show: (source) => wall(source.fromUnixMs) },
      { title: "Until", value: (source) => source.untilUnixMs, show: (source) => wall(source.untilUnixMs) },
      { title: "State", value: (source) => source.state, show: (source) => name(source.state) },
      { title: "Processes", value: (source) => source.processes, number: true, show: (source) => count(source.processes) },
      { title: "Records", value: (source) => source.records, number: true, show: (source) => count(source.records) },
      { title: "Lost", value: (source) => sum(lost(source).map(([, value]) => value)), show: (source) => {
        const parts = lost(source);
        if (!parts.length) return source.loss.length ? "nothing" : "not known";
        return el("span", { class: "lost" }, parts.map(([key, value]) => el("div", {}, `${key.replaceAll("_", " ")}: ${count(value)}`)),
          source.gaps.map(([from, to, records]) => el("div", { class: "tag" }, `${count(records)} records, ${from ? wall(from / 1000) : "from the begin"} to ${wall(to / 1000)}`)));
      } },
      { title: "What else", show: (source) => [...(source.nccl.length ? [el("div", {}, `NCCL ${source.nccl.join(", ")}`)] : []), ...source.notes.map((note) => el("div", {}, name(note)))] },
    ], data.sources, { first: 16 }));
    shown.losses = () => data.sources.map((source) => ({ path: source.path, loss: source.loss }));
  }

  NcclReport.tables = () => {
    slowRanks();
    slowLinks();
    slowOps();
    sizes();
    iterations();
    code();
    losses();
  };
})();
