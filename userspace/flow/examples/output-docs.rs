//! Writes the tables of docs/OUTPUT.md and docs/PARQUET.md from the rows. Run by `cargo xtask make
//! output-docs`.
//!
//! `output-docs DOCUMENT [--check]`: the lines between `<!-- columns: NAME -->` and `<!-- end of columns -->`
//! are replaced; with `--check` nothing is written, and it is an error if they differ.

use std::{env, error::Error, fmt::Write as _, fs, process::ExitCode};

use flow::schema::{
    ApiCallRow, ClockReport, Column, CommunicatorReport, CpuReport, FleetColumns, FleetComm, FleetHost,
    FleetMessage, Gap, GpuRow, LinkKey, LinkRow, LinkSecond, LossReport, MessageRow, OpRow, OpTimes,
    OtherCallRow, PeerRow, StackRow, WaitRow,
};

const BEGIN: &str = "<!-- columns: ";
const END: &str = "<!-- end of columns -->";

/// Columns that only Parquet tables have, by the name in the markers of docs/PARQUET.md.
const FLEET_TABLES: &[(&str, &[Column])] = &[
    ("fleet", FleetColumns::COLUMNS),
    ("fleet-message", FleetMessage::COLUMNS),
    ("comm", FleetComm::COLUMNS),
    ("host", FleetHost::COLUMNS),
    ("link_1s", LinkSecond::COLUMNS),
];

/// Columns of every row, by the name in the markers of docs/OUTPUT.md.
const TABLES: &[(&str, &[Column])] = &[
    ("op", OpRow::COLUMNS),
    ("peer", PeerRow::COLUMNS),
    ("message", MessageRow::COLUMNS),
    ("link-key", LinkKey::COLUMNS),
    ("link", LinkRow::COLUMNS),
    ("wait", WaitRow::COLUMNS),
    ("op-times", OpTimes::COLUMNS),
    ("api-call", ApiCallRow::COLUMNS),
    ("other-call", OtherCallRow::COLUMNS),
    ("stack", StackRow::COLUMNS),
    ("gpu", GpuRow::COLUMNS),
    ("clock", ClockReport::COLUMNS),
    ("communicator", CommunicatorReport::COLUMNS),
    ("cpu", CpuReport::COLUMNS),
    ("gap", Gap::COLUMNS),
    ("loss", LossReport::COLUMNS),
];

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let path = arguments.next().ok_or("usage: output-docs DOCUMENT [--check]")?;
    let text = fs::read_to_string(&path)?;
    let tables = if path.ends_with("PARQUET.md") { FLEET_TABLES } else { TABLES };
    let made = with_tables(&text, tables)?;
    if arguments.next().as_deref() == Some("--check") {
        if made != text {
            eprintln!("`{path}` is not what the rows say: run `cargo xtask make output-docs`");
            return Ok(ExitCode::FAILURE);
        }
    } else if made != text {
        fs::write(&path, made)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the document with its tables made anew.
fn with_tables(text: &str, tables: &[(&str, &[Column])]) -> Result<String, Box<dyn Error>> {
    let mut made = String::new();
    let mut left: Vec<&str> = tables.iter().map(|(name, _)| *name).collect();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        writeln!(made, "{line}")?;
        let Some(name) = line.strip_prefix(BEGIN).and_then(|name| name.strip_suffix(" -->")) else {
            continue;
        };
        let (_, columns) = tables
            .iter()
            .find(|(known, _)| *known == name)
            .ok_or_else(|| format!("no row is called `{name}`"))?;
        left.retain(|other| *other != name);
        write_table(&mut made, columns)?;
        if !lines.by_ref().any(|line| line == END) {
            return Err(format!("the table of `{name}` has no `{END}`").into());
        }
        writeln!(made, "{END}")?;
    }
    if left.is_empty() { Ok(made) } else { Err(format!("rows without a table: {}", left.join(", ")).into()) }
}

fn write_table(out: &mut String, columns: &[Column]) -> std::fmt::Result {
    writeln!(out, "| key | value | unit | meaning |\n|---|---|---|---|")?;
    for Column { key, kind, unit, about, cells: _ } in columns {
        let kind = format!("{kind:?}").to_lowercase();
        writeln!(out, "| `{key}` | {kind} | {unit} | {} |", about.replace('|', "\\|"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::{FLEET_TABLES, TABLES};

    #[test]
    fn keys_are_unique_and_each_says_what_it_means() {
        for (name, columns) in TABLES.iter().chain(FLEET_TABLES) {
            let keys: HashSet<&str> = columns.iter().map(|column| column.key).collect();
            assert_eq!(keys.len(), columns.len(), "{name}");
            assert!(columns.iter().all(|column| !column.about.is_empty()), "{name}");
            let is_time = |key: &str| key.ends_with("_ns");
            let unlike = columns.iter().find(|column| is_time(column.key) && column.unit != "ns");
            assert!(unlike.is_none(), "{name}: {unlike:?}");
        }
    }
}
