//! The tables of a partition: a job on a host.

use flow::{
    schema::{
        ApiCall, ClockReport, CommunicatorReport, FleetColumns, FleetComm, FleetHost, FleetMessage,
        LossReport, MessageRow, MessageSums, NicRow, Op, OtherCallRow, RankKey, comm_hash_name,
    },
    session::SessionReport,
};
use std::{io, sync::Arc};

use foldhash::HashMap;
use nccl_library::nccl::Direction;

use super::{
    file::{TableFile, io_error},
    links::LinkSeconds,
    names,
    rows::TableRows,
    table::{Layout, Table},
    tables::Formats,
};
use crate::export::Row;
use recording::sinks::OutputDir;

/// Most rows of a row group.
const MAX_ROWS: usize = 1 << 18;

/// Most ranks of communicators. A host has some hundreds.
const MAX_RANKS: usize = 65_536;

/// State shared by all partitions of a recording.
#[derive(Debug)]
pub(super) struct Common {
    pub(super) dir: OutputDir,
    /// Formats of the tables.
    pub(super) formats: Formats,
    /// Prefix of the names of the recording's files.
    pub(super) recording: String,
    /// Offset from CLOCK_MONOTONIC to Unix time, by the clock of its host, or of another one.
    pub(super) offset_ns: Option<u64>,
    /// `session.json` of the recording's end, or else of its beginning.
    pub(super) report: SessionReport,
    /// Places of the report's communicators, by folder, rank and process.
    places: HashMap<(String, i32, u32), usize>,
}

impl Common {
    pub(super) fn new(
        dir: OutputDir,
        formats: &Formats,
        recording: String,
        report: SessionReport,
        offset_ns: Option<u64>,
    ) -> Self {
        let place =
            |(place, row): (usize, &CommunicatorReport)| ((row.folder.clone(), row.rank, row.pid), place);
        Self {
            dir,
            formats: Arc::clone(formats),
            recording,
            offset_ns,
            places: report.communicators.iter().enumerate().map(place).collect(),
            report,
        }
    }

    fn communicator(&self, rank: RankKey) -> Option<&CommunicatorReport> {
        let place = *self.places.get(&(rank.comm_name(), rank.rank, rank.pid))?;
        self.report.communicators.get(place)
    }

    /// Names the network device of a link of a rank, where it is known.
    pub(super) fn nic(&self, rank: RankKey, op: Direction, peer: i32, channel: u32) -> Option<String> {
        self.communicator(rank)?.nic(op, peer, channel).map(NicRow::label)
    }
}

/// Counts of what was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) rows: u64,
    pub(super) files: u64,
    pub(super) bytes: u64,
    /// Numbers too large for a column, left out.
    pub(super) too_large: u64,
}

#[derive(Debug)]
struct TableState {
    rows: TableRows,
    file: Option<TableFile>,
    /// Names of files that were begun; those before the last are complete.
    names: Vec<String>,
}

#[derive(Debug)]
pub(super) struct Partition {
    common: Arc<Common>,
    pub(super) job: String,
    pub(super) host: String,
    /// The tables, each in the place of its number.
    tables: [TableState; Table::ALL.len()],
    links: LinkSeconds,
    ranks: HashMap<RankKey, FleetComm>,
    pub(super) counts: Counts,
}

impl Partition {
    pub(super) fn new(common: &Arc<Common>, job: &str, host: &str) -> Self {
        let tables = Table::ALL.map(|table| {
            let rows = TableRows::new(&common.formats[table as usize].0);
            TableState { rows, file: None, names: Vec::new() }
        });
        Self {
            common: Arc::clone(common),
            job: job.to_owned(),
            host: host.to_owned(),
            tables,
            links: LinkSeconds::default(),
            ranks: HashMap::default(),
            counts: Counts::default(),
        }
    }

    /// Opens a table's folder. It is not kept open: an export can have thousands of them.
    fn folder(&self, table: Table) -> io::Result<OutputDir> {
        let [job, host] = [names::partition("job", &self.job), names::partition("host", &self.host)];
        self.common.dir.subfolder(table.name())?.subfolder(&job)?.subfolder(&host)
    }

    pub(super) fn row(&mut self, row: Row<'_>) -> io::Result<()> {
        match row {
            Row::Op(op) => self.op(op),
            Row::Messages(op, messages) => self.messages(op, messages),
            Row::MessageSums(op, sums) => self.message_sums(op, sums),
            Row::Call(call) => self.call(call),
            Row::OtherCall(row) => self.other_call(row),
            Row::Stack(_) | Row::Gpu(_) | Row::LaunchThread(_) | Row::ProcessEnded(_) => Ok(()),
        }
    }

    fn op(&mut self, op: &Op) -> io::Result<()> {
        let columns = self.columns(Some(op.rank), op.row.ts_ns);
        self.push(Table::Op, |layout, rows| {
            rows.put(layout, 0, &columns);
            rows.put(layout, 1, &op.row);
        })?;
        let comm = self.rank(op.rank, op.row.ts_ns)?;
        comm.ops += 1;
        comm.n_ranks = Some(op.row.n_ranks);
        comm.first_seq = Some(comm.first_seq.map_or(op.row.seq, |seq| seq.min(op.row.seq)));
        comm.last_seq = comm.last_seq.max(Some(op.row.seq));
        Ok(())
    }

    fn messages(&mut self, op: &Op, messages: &[MessageRow]) -> io::Result<()> {
        let columns = self.columns(Some(op.rank), op.row.ts_ns);
        let mut of_op = FleetMessage { ts_ns: op.row.ts_ns, pid: op.row.pid, nic: None };
        let mut link = None;
        for message in messages {
            let next = (message.op, message.peer, message.channel);
            if link.replace(next) != Some(next) {
                of_op.nic = self.common.nic(op.rank, message.op, message.peer, message.channel);
            }
            self.push(Table::Message, |layout, rows| {
                rows.put(layout, 0, &columns);
                rows.put(layout, 1, &of_op);
                rows.put(layout, 2, message);
            })?;
        }
        self.rank(op.rank, op.row.ts_ns)?.messages += messages.len() as u64;
        self.links.add(op, messages, self.common.offset_ns.unwrap_or(0));
        if self.links.is_full() { self.flush_links() } else { Ok(()) }
    }

    /// Adds messages that were only planned: they appear in the sums of their links only.
    fn message_sums(&mut self, op: &Op, sums: &[MessageSums]) -> io::Result<()> {
        self.links.add_sums(op, sums, self.common.offset_ns.unwrap_or(0));
        if self.links.is_full() { self.flush_links() } else { Ok(()) }
    }

    fn call(&mut self, call: &ApiCall) -> io::Result<()> {
        let columns = self.columns(call.rank, call.row.ts_ns);
        self.push(Table::Call, |layout, rows| {
            rows.put(layout, 0, &columns);
            rows.put(layout, 1, &call.row);
        })?;
        if let Some(rank) = call.rank {
            let comm = self.rank(rank, call.row.ts_ns)?;
            comm.calls += 1;
            comm.n_ranks = comm.n_ranks.or(call.row.n_ranks);
        }
        Ok(())
    }

    fn other_call(&mut self, row: &OtherCallRow) -> io::Result<()> {
        let columns = self.columns(None, row.ts_ns);
        self.push(Table::Call, |layout, rows| {
            rows.put(layout, 0, &columns);
            rows.put(layout, 2, row);
        })
    }

    /// Writes all gathered rows, and completes the files. Only the recording's own row is missing then.
    pub(super) fn write_all(&mut self) -> io::Result<()> {
        self.flush_links()?;
        self.flush_ranks()?;
        for table in Table::ALL {
            self.write_rows(table, table != Table::Host)?;
            self.finish_file(table)?;
        }
        Ok(())
    }

    /// Writes the row of the recording.
    pub(super) fn write_host(
        &mut self,
        host: &FleetHost,
        clock: &ClockReport,
        loss: &LossReport,
    ) -> io::Result<()> {
        self.push(Table::Host, |layout, rows| {
            rows.put(layout, 0, host);
            rows.put(layout, 1, clock);
            rows.put(layout, 2, loss);
        })?;
        self.write_rows(Table::Host, true)?;
        self.finish_file(Table::Host)
    }

    /// Gives the files their names: readers see them from now on.
    pub(super) fn publish(&mut self) -> io::Result<()> {
        for table in Table::ALL {
            let folder = self.folder(table)?;
            for name in self.tables[table as usize].names.drain(..) {
                folder.rename_new(&names::temporary(&name), &name)?;
            }
        }
        Ok(())
    }

    /// Removes the files that have no name yet.
    pub(super) fn discard(&mut self) {
        for table in Table::ALL {
            let state = &mut self.tables[table as usize];
            state.file = None;
            let names = std::mem::take(&mut state.names);
            if names.is_empty() {
                continue;
            }
            let Ok(folder) = self.folder(table) else { continue };
            for name in &names {
                folder.remove_file(&names::temporary(name));
            }
        }
    }

    /// Returns the memory of waiting rows.
    pub(super) fn bytes(&self) -> usize {
        self.tables.iter().map(|state| state.rows.bytes()).sum()
    }

    /// Writes the rows of the table that takes the most memory.
    pub(super) fn write_largest(&mut self) -> io::Result<()> {
        let largest = Table::ALL.into_iter().max_by_key(|table| self.tables[*table as usize].rows.bytes());
        largest.map_or(Ok(()), |table| self.write_rows(table, false))
    }

    /// Counts the files that are being written.
    pub(super) fn open_files(&self) -> usize {
        self.tables.iter().filter(|state| state.file.is_some()).count()
    }

    /// Completes its files; further rows go to others.
    pub(super) fn finish_files(&mut self) -> io::Result<()> {
        Table::ALL.into_iter().try_for_each(|table| self.finish_file(table))
    }

    fn columns(&self, rank: Option<RankKey>, ts_ns: u64) -> FleetColumns {
        let clock_offset_ns = self.common.offset_ns;
        FleetColumns {
            communicator: rank.map(|rank| rank.comm_name()),
            wall_ns: clock_offset_ns.map(|offset| ts_ns.saturating_add(offset)),
            clock_offset_ns,
        }
    }

    fn rank(&mut self, rank: RankKey, ts_ns: u64) -> io::Result<&mut FleetComm> {
        if self.ranks.len() >= MAX_RANKS && !self.ranks.contains_key(&rank) {
            return Err(io::Error::other(format!("the recording has more than {MAX_RANKS} ranks on a host")));
        }
        let comm = self.ranks.entry(rank).or_insert_with(|| FleetComm {
            communicator: rank.comm_name(),
            comm_hash: comm_hash_name(rank.hash),
            rank: rank.rank,
            pid: rank.pid,
            first_ns: ts_ns,
            last_ns: ts_ns,
            ..FleetComm::default()
        });
        comm.first_ns = comm.first_ns.min(ts_ns);
        comm.last_ns = comm.last_ns.max(ts_ns);
        Ok(comm)
    }

    fn flush_links(&mut self) -> io::Result<()> {
        let rows: Vec<_> = self.links.take(&self.common).collect();
        rows.iter().try_for_each(|row| self.push(Table::Link1s, |layout, rows| rows.put(layout, 0, row)))
    }

    fn flush_ranks(&mut self) -> io::Result<()> {
        let common = Arc::clone(&self.common);
        let wall = |ns: u64| common.offset_ns.map(|offset| ns.saturating_add(offset));
        for (rank, comm) in std::mem::take(&mut self.ranks) {
            let comm =
                FleetComm { first_wall_ns: wall(comm.first_ns), last_wall_ns: wall(comm.last_ns), ..comm };
            self.push(Table::Comm, |layout, rows| {
                if let Some(about) = common.communicator(rank) {
                    rows.put(layout, 1, about);
                }
                // Last: it replaces the columns that are in both.
                rows.put(layout, 0, &comm);
            })?;
        }
        Ok(())
    }

    fn push(&mut self, table: Table, put: impl FnOnce(&Layout, &mut TableRows)) -> io::Result<()> {
        let rows = &mut self.tables[table as usize].rows;
        put(&self.common.formats[table as usize].0, rows);
        rows.end_row();
        if rows.len() >= MAX_ROWS { self.write_rows(table, false) } else { Ok(()) }
    }

    /// Writes the waiting rows as a row group; `even_none`: also creates an empty file, so that every table
    /// can be read.
    fn write_rows(&mut self, table: Table, even_none: bool) -> io::Result<()> {
        let common = Arc::clone(&self.common);
        let (layout, format) = &common.formats[table as usize];
        let TableState { rows, file, names } = &self.tables[table as usize];
        let is_empty = rows.len() == 0;
        if is_empty && !(even_none && names.is_empty()) {
            return Ok(());
        }
        let mut begun = None;
        if file.is_none() {
            let name = format!("{}-{:04}.parquet", common.recording, names.len());
            let (folder, temporary) = (self.folder(table)?, names::temporary(&name));
            // Left by an export that was killed.
            folder.remove_file(&temporary);
            begun = Some((name, folder.create_file(&temporary)?));
        }
        let TableState { rows, file, names } = &mut self.tables[table as usize];
        if let Some((name, new)) = begun {
            names.push(name);
            *file = Some(TableFile::new(new, format).map_err(io_error)?);
        }
        if is_empty {
            return Ok(());
        }
        let rows = std::mem::replace(rows, TableRows::new(layout));
        self.counts.too_large += rows.too_large;
        self.counts.rows += rows.len() as u64;
        let Some(file) = file else { return Ok(()) };
        file.write(&rows, &layout.sorted_by).map_err(io_error)?;
        if file.is_full() { self.finish_file(table) } else { Ok(()) }
    }

    fn finish_file(&mut self, table: Table) -> io::Result<()> {
        let Some(file) = self.tables[table as usize].file.take() else { return Ok(()) };
        self.counts.bytes += file.finish().map_err(io_error)?;
        self.counts.files += 1;
        Ok(())
    }
}
