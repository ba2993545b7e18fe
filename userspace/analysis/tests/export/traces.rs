//! Recordings of real jobs, of which others are made.

use std::{collections::BTreeSet, fs, path::Path, sync::Arc};

use analysis::export::{Choice, ExportOptions, Exported, Format, InspectorVersion, ViewOptions, export};
use flow::{
    decode::RecordView,
    recording::{Batch, Binding, Session},
};
use ncclflow_common::{LOSS_MARK, RecordHeader};
use recording::{
    format::{Item, Progress, RecordingReader, RecordingWriter, Selection},
    sinks::OutputDir,
};
use serde_json::Value;

/// A block's time.
const BLOCK_NS: u64 = 1_000_000_000;

/// The jobs last 4 s. Their time is stretched to more than a part's surroundings.
pub(crate) const STRETCH: u64 = 30;

/// A recording's records with their times stretched, and what they mean.
pub(crate) struct Recorded {
    session: Session,
    bindings: Vec<Binding>,
    records: Vec<Vec<u8>>,
    report: String,
}

/// The recording of this name in `tests/traces`.
pub(crate) fn recorded(name: &str) -> Recorded {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/traces").join(name);
    let mut reader = RecordingReader::open(OutputDir::open(&path).unwrap()).unwrap();
    let (mut bindings, mut records, mut first, mut report) = (Vec::new(), Vec::new(), None, None);
    let mut take = |item: Item<'_>| match item {
        Item::Bindings(new) => bindings.extend_from_slice(new),
        Item::Record(record) => {
            let mut record = record.to_vec();
            let mut head = RecordHeader::from_bytes(&record).unwrap();
            if head.probe != LOSS_MARK {
                let first = *first.get_or_insert(head.ts_ns);
                head.ts_ns = first + (head.ts_ns.saturating_sub(first)) * STRETCH;
                let bytes = head.to_bytes();
                record[..bytes.len()].copy_from_slice(&bytes);
            }
            records.push(record);
        }
        Item::End(text) => report = Some(text),
        Item::Event(_) | Item::Gap => {}
    };
    while reader.read_next(&Selection::ALL, &mut take).unwrap() == Progress::Read {}
    let report = report.unwrap();
    let session = Session { report: report.clone(), ..reader.session().clone() };
    Recorded { session, bindings, records, report }
}

fn time(record: &[u8]) -> Option<u64> {
    let header = RecordView::new(record).unwrap().header;
    (header.probe != LOSS_MARK).then_some(header.ts_ns)
}

impl Recorded {
    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    /// Times of the first and last record.
    pub(crate) fn span(&self) -> (u64, u64) {
        let times = || self.records.iter().filter_map(|record| time(record));
        (times().min().unwrap(), times().max().unwrap())
    }

    /// From the records' clock to Unix time.
    pub(crate) fn offset(&self) -> u64 {
        serde_json::from_str::<Value>(&self.report).unwrap()["clock"]["offset_ns"].as_u64().unwrap()
    }

    /// All records so much later.
    pub(crate) fn shifted(mut self, ns: u64) -> Self {
        for record in &mut self.records {
            let mut head = RecordHeader::from_bytes(record).unwrap();
            if head.probe != LOSS_MARK {
                head.ts_ns += ns;
                let bytes = head.to_bytes();
                record[..bytes.len()].copy_from_slice(&bytes);
            }
        }
        self
    }

    /// The first records only.
    pub(crate) fn cut_to(mut self, records: usize) -> Self {
        self.records.truncate(records);
        self
    }

    /// Processes by the number that records carry.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let pids = self.records.iter().filter(|record| time(record).is_some());
        let pids: BTreeSet<u32> = pids.map(|record| RecordView::new(record).unwrap().header.tgid).collect();
        pids.into_iter().collect()
    }

    /// What this process recorded, by another host whose clock is so much ahead.
    pub(crate) fn of_process(&self, pid: u32, host: &str, ahead_ns: u64) -> Self {
        let mut report: Value = serde_json::from_str(&self.report).unwrap();
        report["host"] = host.into();
        report["clock"]["offset_ns"] = (self.offset() - ahead_ns).into();
        // No two recordings begin at one moment.
        let began = report["clock"]["started_realtime_ns"].as_u64().unwrap();
        report["clock"]["started_realtime_ns"] = (began + u64::from(pid)).into();
        let of_pid = |list: &Value| -> Value {
            list.as_array().unwrap().iter().filter(|one| one["pid"] == pid).cloned().collect()
        };
        for list in ["targets", "communicators"] {
            report[list] = of_pid(&report[list]);
        }
        let own = |record: &&Vec<u8>| {
            RecordView::new(record)
                .is_ok_and(|view| view.header.tgid == pid || view.header.probe == LOSS_MARK)
        };
        let report = report.to_string();
        let one = Self {
            session: Session { report: report.clone(), ..self.session.clone() },
            bindings: self.bindings.clone(),
            records: self.records.iter().filter(own).cloned().collect(),
            report,
        };
        one.shifted(ahead_ns)
    }

    /// With a clock of Unix time that is wrong by so much.
    pub(crate) fn wrong_by(mut self, ns: u64) -> Self {
        let mut report: Value = serde_json::from_str(&self.report).unwrap();
        report["clock"]["offset_ns"] = (self.offset() + ns).into();
        self.report = report.to_string();
        self.session.report.clone_from(&self.report);
        self
    }

    /// Writes the records from the one of this number until before the other as a recording below `folder`.
    pub(crate) fn record(&self, folder: &Path, which: std::ops::Range<usize>) {
        fs::create_dir(folder).unwrap();
        let dir = OutputDir::open(folder).unwrap();
        let mut writer = RecordingWriter::create(&dir, self.session.clone()).unwrap();
        writer.bind(|known| known.clone_from(&self.bindings));
        let (mut batch, mut begun) = (Batch::default(), 0);
        for record in &self.records[which.start..which.end.min(self.records.len())] {
            let at = time(record).unwrap_or(begun);
            if at > begun + BLOCK_NS || batch.is_full() {
                writer.push(&Arc::new(std::mem::take(&mut batch))).unwrap();
                if at > begun + BLOCK_NS {
                    writer.close_block().unwrap();
                    begun = at;
                }
            }
            batch.push(record);
        }
        writer.push(&Arc::new(batch)).unwrap();
        writer.write_end(&self.report).unwrap();
    }
}

/// Exports these folders to `output`.
pub(crate) fn run(inputs: &[&Path], output: &Path, format: Format, choice: Choice) -> Exported {
    let options = ExportOptions {
        inputs: inputs.iter().map(|path| path.to_path_buf()).collect(),
        output: output.to_owned(),
        format,
        // The form with everything.
        view: ViewOptions { inspector: InspectorVersion::V4_3, ..ViewOptions::default() },
        choice,
    };
    export(options, &mut |_| ()).unwrap()
}

/// Every line of the files of this kind, by folder and rank as their paths say it.
pub(crate) fn lines(folder: &Path, kind: &str) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    for comm in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir())
    {
        for file in fs::read_dir(&comm).unwrap().map(|entry| entry.unwrap().path()) {
            let name = file.strip_prefix(folder).unwrap().display().to_string();
            if name.contains(&format!("/{kind}_rank")) && file.extension().is_some_and(|end| end == "jsonl") {
                let text = fs::read_to_string(&file).unwrap();
                found.extend(text.lines().map(|line| (name.clone(), serde_json::from_str(line).unwrap())));
            }
        }
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}
