//! `ncclflow summary`

use std::{
    io::{self, Write},
    process::ExitCode,
};

use anyhow::Result;

use super::{args::SummaryArgs, progress::BytesLine, terminal, write_json};
use crate::check::{RankReport, summarize};

pub(super) fn run(args: &SummaryArgs) -> Result<ExitCode> {
    let mut line = BytesLine::new("");
    let report = summarize(&args.dirs, &mut |bytes, of_bytes| line.show(bytes, of_bytes));
    line.clear();
    let report = report?;
    let mut out = terminal::out();
    if args.json {
        write_json(&mut out, &report)?;
    } else {
        let mut window = None;
        for rank in &report.ranks {
            if rank.window.as_ref() != window {
                window = rank.window.as_ref();
                writeln!(out, "{}:", window.map_or("", String::as_str))?;
            }
            write_rank(rank, &mut out)?;
        }
        report.notes.iter().try_for_each(|note| writeln!(out, "{note}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn write_rank(rank: &RankReport, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{} rank {}: {} ops measured", rank.communicator, rank.rank, rank.ops.len())?;
    writeln!(
        out,
        "  {:<4} {:>4} {:>3} {:<4} {:>9} {:>14} {:>9} {:>9} {:>9}  waits, in % of all",
        "op", "peer", "ch", "", "messages", "bytes", "MB/s", "p50 µs", "p99 µs"
    )?;
    for link in &rank.links {
        let us = |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), |ns| (ns / 1000).to_string());
        let all: u64 = link.waits.values().map(|wait| wait.total_ns).sum();
        let waits: Vec<String> = link
            .waits
            .iter()
            .filter(|(_, times)| times.total_ns > 0)
            .map(|(wait, times)| {
                let percent = u128::from(times.total_ns) * 100 / u128::from(all.max(1));
                format!("{} {percent}", wait.name())
            })
            .collect();
        writeln!(
            out,
            "  {:<4} {:>4} {:>3} {:<4} {:>9} {:>14} {:>9} {:>9} {:>9}  {}",
            link.op.name(),
            link.peer,
            link.channel,
            link.transport,
            link.messages,
            link.bytes,
            link.bandwidth.map_or_else(|| "-".to_owned(), |bandwidth| (bandwidth / 1_000_000).to_string()),
            us(link.message.map(|message| message.p50_ns)),
            us(link.message.map(|message| message.p99_ns)),
            waits.join(", ")
        )?;
    }
    let slowest =
        rank.ops.iter().max_by_key(|op| op.times.last_end_ns.saturating_sub(op.times.first_start_ns));
    if let Some(op) = slowest {
        let link = &op.times.slowest_link;
        writeln!(
            out,
            "  longest op: {} ({} µs); its slowest link: {} {} on channel {}",
            op.seq,
            op.times.last_end_ns.saturating_sub(op.times.first_start_ns) / 1000,
            link.op.name(),
            link.peer,
            link.channel
        )?;
    }
    Ok(())
}
