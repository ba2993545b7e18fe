//! The memory as text for people: a line for each process, and a table of its communicators.

use std::fmt::Write as _;

use flow::text::{bytes, column_widths, counted, write_wrapped};

use super::{CommunicatorMemory, MemReport, Part, ProcessMemory, Purpose, Transport};

/// Columns of the table, in their order.
const HEAD: [&str; 6] = ["GPU", "HOST", "ENDS", "WAY", "FOR", "COMMUNICATOR"];

/// Renders the report. `width`: columns of a line.
pub fn render(report: &MemReport, width: usize) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let line = |out: &mut String, text: &str, indent| _ = write_wrapped(out, text, indent, width);
    for (number, process) in report.processes.iter().enumerate() {
        if number > 0 {
            out.push('\n');
        }
        line(&mut out, &headline(process), 0);
        table(&mut out, process);
        if let Some(error) = process.error.as_ref().filter(|_| !process.communicators.is_empty()) {
            line(&mut out, error, 2);
        }
        let of_comm = |one: &CommunicatorMemory| -> Vec<String> {
            one.remarks.iter().map(|remark| format!("{}: {remark}", label(one))).collect()
        };
        for remark in process.communicators.iter().flat_map(of_comm) {
            line(&mut out, &remark, 2);
        }
    }
    if let Some(why) = &report.driver_missing {
        line(&mut out, &format!("what the driver says is not known: {why}"), 0);
    }
    if report.denied > 0 {
        line(&mut out, &format!("cannot inspect {}", counted(report.denied, "process")), 0);
    }
    out
}

/// Sums a process up: `process 4711 (python): NCCL has 1.62 GB of GPU memory …`.
fn headline(process: &ProcessMemory) -> String {
    let ProcessMemory { pid, name, gpu_bytes, host_bytes, driver, communicators, error } = process;
    let name = if name.is_empty() { String::new() } else { format!(" ({name})") };
    if let (Some(error), true) = (error, communicators.is_empty()) {
        return format!("process {pid}{name}: {error}");
    }
    if communicators.is_empty() {
        return format!("process {pid}{name}: no communicator");
    }
    let of_driver: Vec<String> = driver
        .iter()
        .map(|of_gpu| format!("{} on GPU {}", size(of_gpu.bytes), of_gpu.bus_id.as_deref().unwrap_or("?")))
        .collect();
    let of_driver = match of_driver.len() {
        0 => String::new(),
        _ => format!("; the driver counts {} for all of the process", of_driver.join(", ")),
    };
    format!(
        "process {pid}{name}: NCCL has {} of GPU memory and {} of the host's for {}{of_driver}",
        size(*gpu_bytes),
        size(*host_bytes),
        counted(communicators.len(), "communicator"),
    )
}

fn table(out: &mut String, process: &ProcessMemory) {
    let mut rows: Vec<(u64, [String; 6])> = Vec::new();
    for one in &process.communicators {
        rows.extend(one.parts.iter().map(|part| (part.gpu_bytes.max(part.host_bytes), row(one, part))));
    }
    if rows.is_empty() {
        return;
    }
    rows.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    let lines: Vec<[String; 6]> =
        [HEAD.map(str::to_owned)].into_iter().chain(rows.into_iter().map(|(_, row)| row)).collect();
    let widths = column_widths(&lines);
    for [gpu, host, ends, way, purpose, whose] in lines {
        // Writing to a string cannot fail.
        _ = writeln!(
            out,
            "  {gpu:>0$}  {host:>1$}  {ends:>2$}  {way:<3$}  {purpose:<4$}  {whose}",
            widths[0], widths[1], widths[2], widths[3], widths[4]
        );
    }
}

fn row(one: &CommunicatorMemory, part: &Part) -> [String; 6] {
    let cell = |bytes: u64| match bytes {
        0 if part.untold == part.connections && part.connections > 0 => "?".to_owned(),
        0 => "-".to_owned(),
        bytes => size(bytes),
    };
    let (way, purpose) = match part.transport {
        Transport::P2p => ("P2P", purpose(part.purpose)),
        Transport::Shm => ("SHM", purpose(part.purpose)),
        Transport::Net => ("NET", purpose(part.purpose)),
        Transport::CollNet => ("COLLNET", purpose(part.purpose)),
        Transport::Proxy => ("PXN", purpose(part.purpose)),
        Transport::Unknown => ("?", purpose(part.purpose)),
        Transport::Work => ("-", "FIFO of work"),
    };
    let ends = if part.transport == Transport::Work { "-".to_owned() } else { part.connections.to_string() };
    [cell(part.gpu_bytes), cell(part.host_bytes), ends, way.to_owned(), purpose.to_owned(), label(one)]
}

fn purpose(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Collectives => "collectives",
        Purpose::SendRecv => "send/recv",
    }
}

fn label(one: &CommunicatorMemory) -> String {
    let name = one.comm_name.as_deref().filter(|name| !name.is_empty());
    format!("{} {}/{}", name.unwrap_or(&one.comm_hash), one.rank, one.n_ranks)
}

fn size(of: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    bytes(of as f64)
}
