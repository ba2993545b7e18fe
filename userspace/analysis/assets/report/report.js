// Puts the page together: the verdict, then each section.
"use strict";

(() => {
  const { data, comms, el, name, add, into, bytes, count, duration, wall, sum, jobTitle, commTitle, place, table, t0Ms, clean } = NcclReport;

  const LEVELS = {
    fault: ["✕", "Fault"],
    slow: ["▲", "Slow"],
    good: ["✓", "No fault found"],
    open: ["○", "No fault found in what was seen"],
    unknown: ["?", "No verdict"],
  };

  function verdict() {
    const { level, sentence, ranks, findings, notes } = data.verdict;
    const [mark, title] = LEVELS[level] || LEVELS.unknown;
    document.getElementById("verdict-box").className = level;
    into("mark", mark);
    into("level", findings.length && level === "open" ? "Not everything is known" : title);
    into("sentence", sentence);
    into("where", ranks.slice(0, 8).map(([comm, rank]) => el("li", {}, `Rank ${rank}: `, name(place(comms[comm], rank)),
      comms[comm].byRank.has(rank) ? `, process ${comms[comm].byRank.get(rank).pid}` : "")));
    const first = findings[0];
    const op = first && first.seq !== null && first.comm !== null && NcclReport.opAt ? NcclReport.opAt(first.comm, first.seq) : null;
    if (op) {
      add(document.getElementById("where"), [el("li", {}, `${first.seq % 2 ? "Operation" : "Collective"} ${Math.floor(first.seq / 2)}: `, name(op.title),
        op.code ? [", called at ", el("span", { class: "mono name" }, op.code.line)] : "")]);
    }
    const others = findings.slice(1);
    into("findings",
      // Where there is one job, the sentence above is its verdict.
      data.jobs.length > 1 ? data.jobs.map((job) => [el("h3", {}, el("span", { class: job.consistent ? "mark-good" : "mark-bad", "aria-hidden": true }, job.consistent ? "✓ " : "▲ "), name(jobTitle(job))), el("p", { class: "of-job" }, name(job.sentence))]) : null,
      others.length ? [el("h3", {}, `${count(others.length)} more ${others.length === 1 ? "finding" : "findings"}`), table([
        { title: "Kind", value: (of) => of.kind, show: (of) => el("span", { class: "kind" }, String(of.kind).replaceAll("_", " ")) },
        ...(comms.length > 1 ? [{ title: "Communicator", value: (of) => of.comm, show: (of) => (of.comm === null ? "–" : name(commTitle(comms[of.comm]))) }] : []),
        ...(findings.some((of) => of.window) ? [{ title: "Window", value: (of) => of.window, show: (of) => name(of.window || "–") }] : []),
        { title: "Finding", show: (of) => name(of.text) },
      ], others, { first: 6 })] : null,
      notes.length ? el("ul", {}, notes.map((note) => el("li", {}, name(note)))) : null);
  }

  function facts() {
    const ranks = sum(comms.map((comm) => comm.ranks.length));
    const all = sum(comms.map((comm) => Math.max(comm.nRanks, comm.ranks.length)));
    const ops = sum(data.kinds.filter((kind) => !kind.isCall).map((kind) => kind.ops));
    const measured = sum(data.kinds.map((kind) => kind.measured));
    const sent = sum(data.rates.sent);
    const lost = sum(data.sources.map((source) => sum(source.loss.filter(([key]) => key.startsWith("records_")).map(([, value]) => value))));
    const fact = (title, value, small) => el("div", {}, el("dt", {}, title), el("dd", {}, value, small ? [" ", el("small", {}, small)] : null));
    into("facts",
      fact("Recorded", wall(t0Ms).replace(/\.\d+ UTC$/, " UTC")),
      fact("Length", duration(data.spanUs * 1000)),
      fact("Hosts", count(data.hosts.length)),
      data.jobs.length > 1 ? fact("Jobs", count(data.jobs.length)) : null,
      fact("Communicators", count(comms.length)),
      fact("Ranks", count(ranks), ranks < all ? `of ${count(all)}` : null),
      ops ? fact("Operations", count(ops), `of all ranks, ${measured ? `${Math.floor((measured / ops) * 100)} % measured` : "planned only"}`) : null,
      data.rows.calls ? fact("API calls", count(data.rows.calls)) : null,
      sent ? fact("Sent, measured", bytes(sent)) : null,
      fact("Records lost", data.sources.every((source) => source.loss.length) ? count(lost) : "not known"));
  }

  function navigation() {
    const nav = document.getElementById("nav");
    const links = new Map();
    for (const section of document.querySelectorAll("main > section")) {
      const title = section.id === "verdict" ? "Verdict" : section.querySelector("h2").textContent.split(/ and |,/)[0];
      const link = el("a", { href: `#${section.id}` }, title);
      links.set(section, link);
      nav.append(link);
    }
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        const link = links.get(entry.target);
        link.classList.toggle("here", entry.isIntersecting);
        if (entry.isIntersecting) link.setAttribute("aria-current", "true");
        else link.removeAttribute("aria-current");
      }
    }, { rootMargin: "-20% 0px -65% 0px" });
    links.forEach((_, section) => seen.observe(section));
  }

  // The timeline knows what the operation of the verdict was.
  NcclReport.timeline();
  document.title = `NCCL report: ${clean(data.verdict.sentence).slice(0, 80)}`;
  verdict();
  facts();
  NcclReport.parts();
  navigation();
  NcclReport.topology();
  NcclReport.traffic();
  NcclReport.delays();
  NcclReport.tables();
  into("footer", `Made by ${data.madeBy}, ${wall(data.madeUnixMs)}. Everything is in this file: nothing was fetched, and nothing is sent. Pictures of time series by uPlot (MIT).`);
  if (data.open) document.getElementById(data.open).scrollIntoView();
  document.documentElement.dataset.ready = "yes";
})();
