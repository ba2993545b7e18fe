// Where an iteration's time goes, for each rank: the first picture.
"use strict";

(() => {
  const { data, el, svg, name, clean, count, draws, drawn, colour, table, into, add, showTip, hideTip, shown } = NcclReport;

  // In the order of a bar. What is left of an iteration was not measured.
  const PARTS = [
    { key: "computingMs", colour: "part-computing", title: "Computing", words: "computing: its GPU's multiprocessors are busy" },
    { key: "ownGpuMs", colour: "part-own", title: "Own GPU", words: "own GPU: it has what messages need, and works on it or is busy elsewhere" },
    { key: "lateMs", colour: "part-late", title: "Launching late", words: "launching late: its GPU has nothing to run, those of others have" },
    { key: "waitingMs", colour: "part-waiting", title: "Waiting for others", words: "waiting for other ranks" },
    { key: "networkMs", colour: "part-network", title: "In the network", words: "waiting for data in the network" },
    { key: "idleMs", colour: "part-idle", title: "Nothing to run", words: "nothing to run, as on the other GPUs" },
    { key: "notMeasuredMs", colour: "part-open", title: "Not measured", words: "not measured" },
  ];
  const milliseconds = (ms) => (ms === null || ms === undefined ? "–" : ms === 0 ? "0" : `${ms.toFixed(2)}\u00a0ms`);
  const place = (rank) => [clean(rank.host), rank.gpu === null ? "" : `GPU\u00a0${rank.gpu}`, `process\u00a0${rank.pid}`].filter(Boolean).join(", ");

  function swatch(part) {
    const made = el("span", { class: part.key === "notMeasuredMs" ? "swatch hatched" : "swatch" });
    if (part.key !== "notMeasuredMs") made.style.background = `var(--${part.colour})`;
    return made;
  }

  function tell(job, rank) {
    const rows = PARTS.filter((part) => rank[part.key] > 0).map((part) => el("tr", {}, el("td", {}, swatch(part)), el("td", {}, part.words),
      el("td", { class: "number" }, milliseconds(rank[part.key])), el("td", { class: "number" }, `${Math.round((rank[part.key] / job.all) * 100)} %`)));
    return [el("b", {}, `Rank ${rank.rank}`), el("div", { class: "soft" }, place(rank)), el("table", {}, rows)];
  }

  /** Whole steps of an axis that has room for about so many. */
  function steps(all, most) {
    const power = 10 ** Math.floor(Math.log10(all / most));
    const step = [1, 2, 5, 10].map((of) => of * power).find((of) => all / of <= most);
    return Array.from({ length: Math.floor(all / step) + 1 }, (_, at) => ({ at: at * step, text: (at * step).toFixed(Math.max(0, -Math.floor(Math.log10(step)))) }));
  }

  function picture(job, box, live) {
    const ranks = job.parts;
    const n = ranks.length;
    const isMarked = (rank) => job.marked.includes(rank.rank);
    let at = null;
    function draw() {
      const width = Math.max(280, box.clientWidth);
      const row = Math.max(5, Math.min(26, Math.floor(420 / n)));
      const [left, top, bottom, right] = [56, 16, 40, 10];
      const height = top + n * row + bottom;
      const x = (ms) => left + (ms / job.all) * (width - left - right);
      const made = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, tabindex: 0, role: "img",
        "aria-label": `Parts of an iteration of ${count(n)} ranks; arrow keys walk from rank to rank` });
      add(made, [svg("defs", {}, svg("pattern", { id: "not-measured", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
        svg("rect", { width: 6, height: 6, fill: colour("faint") }), svg("rect", { width: 1.5, height: 6, fill: colour("planned") })))]);
      for (const step of steps(job.all, Math.max(3, Math.floor(width / 70)))) {
        add(made, [svg("line", { x1: x(step.at), x2: x(step.at), y1: top, y2: top + n * row + 4, stroke: colour("line") }),
          svg("text", { x: x(step.at), y: top + n * row + 17, "text-anchor": "middle", class: "soft" }, step.text)]);
      }
      const every = Math.ceil(13 / row);
      ranks.forEach((rank, of) => {
        const y = top + of * row;
        const gap = row > 8 ? 2 : 0.5;
        const bar = svg("g", { class: "bar-of" });
        let from = 0;
        for (const part of PARTS) {
          const ms = rank[part.key];
          if (!(ms > 0)) continue;
          add(bar, [svg("rect", { x: x(from).toFixed(2), y: y + gap, width: Math.max(0, x(from + ms) - x(from)).toFixed(2), height: row - 2 * gap, "data-part": part.key,
            fill: part.key === "notMeasuredMs" ? "url(#not-measured)" : colour(part.colour) })]);
          from += ms;
        }
        if (of === at) add(bar, [svg("rect", { x: left, y, width: x(job.all) - left, height: row, fill: "none", stroke: colour("text") })]);
        const isBesideMarked = every > 1 && ranks.slice(Math.max(0, of - every + 1), of + every).some(isMarked);
        if (isMarked(rank) || (of % every === 0 && !isBesideMarked)) {
          add(bar, [svg("text", { x: left - 8, y: y + row / 2, "text-anchor": "end", "dominant-baseline": "central", class: isMarked(rank) ? "marked" : null },
            `${isMarked(rank) ? "▶ " : ""}${rank.rank}`)]);
        }
        add(made, [bar]);
      });
      add(made, [svg("text", { x: left - 8, y: 10, "text-anchor": "end", class: "soft" }, "rank"),
        svg("text", { x: (left + width - right) / 2, y: height - 8, "text-anchor": "middle", class: "soft" }, "time of an iteration, mean (ms)")]);
      const find = (event) => {
        const rect = made.getBoundingClientRect();
        const of = Math.floor((((event.clientY - rect.top) * height) / rect.height - top) / row);
        return of >= 0 && of < n ? of : null;
      };
      made.addEventListener("pointermove", (event) => {
        const of = find(event);
        if (of === null) hideTip();
        else showTip(event.clientX, event.clientY, ...tell(job, ranks[of]));
      });
      made.addEventListener("pointerleave", hideTip);
      made.addEventListener("keydown", (event) => {
        const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
        if (!by) return;
        event.preventDefault();
        at = at === null ? 0 : Math.max(0, Math.min(n - 1, at + by));
        draw();
        box.querySelector("svg").focus();
        live.textContent = `Rank ${ranks[at].rank} (${place(ranks[at])}): ${PARTS.filter((part) => ranks[at][part.key] > 0).map((part) => `${part.words} ${milliseconds(ranks[at][part.key])}`).join(" · ")}`;
      });
      box.replaceChildren(made);
    }
    draws(draw);
    drawn();
  }

  function show(job, heading) {
    const used = PARTS.filter((part) => job.parts.some((rank) => rank[part.key] > 0));
    const box = el("div", { class: "parts" });
    const live = el("p", { class: "live", role: "status" });
    const known = PARTS.filter((part) => job.parts.some((rank) => rank[part.key] !== undefined));
    const columns = [
      { title: "Rank", value: (rank) => rank.rank, number: true, show: (rank) => String(rank.rank) },
      { title: "Where", value: (rank) => place(rank), show: (rank) => name(place(rank)) },
      ...known.map((part) => ({ title: part.title, value: (rank) => rank[part.key], number: true, show: (rank) => milliseconds(rank[part.key]) })),
    ];
    add(document.getElementById("iteration-parts"), [
      heading ? el("h3", {}, heading) : null,
      el("p", { class: "about" }, `An iteration takes ${milliseconds(job.all)} in the mean of ${count(job.count)}, ${milliseconds(job.typicalMs)} in the median.`),
      el("ul", { class: "legend" }, used.map((part) => el("li", {}, swatch(part), part.words)),
        job.marked.length ? el("li", {}, el("span", { class: "marked" }, "▶"), "the rank of the verdict") : null),
      box, live, table(columns, job.parts, { sort: 0, down: false, first: 8 }),
    ]);
    picture(job, box, live);
  }

  NcclReport.parts = () => {
    const jobs = data.jobs.flatMap((job) => job.iterations.filter((of) => of.parts.length > 0).map((of) => ({ ...of, job })));
    into("iteration-parts");
    for (const of of jobs) {
      // The bars of a job are equally long.
      of.all = Math.max(...of.parts.map((rank) => PARTS.reduce((all, part) => all + (rank[part.key] || 0), 0)), 1e-6);
      show(of, data.jobs.length > 1 ? NcclReport.jobTitle(of.job) : null);
    }
    // Where there is no such picture, others come first.
    const section = document.getElementById("iterations");
    if (!jobs.length) section.parentElement.insertBefore(section, document.getElementById("code"));
    shown.parts = () => jobs.map(({ job, parts }, of) => ({ job: job.name, parts,
      bars: [...document.querySelectorAll(".parts")[of].querySelectorAll(".bar-of")].map((bar) => [...bar.querySelectorAll("[data-part]")].map((part) => [part.dataset.part, Number(part.getAttribute("width"))])) }));
  };
})();
