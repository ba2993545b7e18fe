//! Makes seeds of the target `recording`: the beginnings of recordings. `recording-seeds FOLDER RECORDING…`

use std::{env, fs, path::PathBuf, sync::Arc};

use flow::recording::Batch;
use flow::recording::Session;
use recording::{
    format::{FOLDER, Item, Progress, RecordingReader, RecordingWriter, Selection},
    sinks::OutputDir,
};

/// Records of a seed: a few blocks, below the fuzzer's longest input.
const RECORDS: usize = 60;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = env::args_os().skip(1).map(PathBuf::from);
    let folder = arguments.next().ok_or("the folder of the seeds")?;
    for (number, recording) in arguments.enumerate() {
        let mut reader = RecordingReader::open(OutputDir::open(&recording)?)?;
        let (mut bindings, mut records) = (Vec::new(), Vec::new());
        let mut take = |item: Item<'_>| match item {
            Item::Bindings(new) => bindings.extend_from_slice(new),
            Item::Record(record) if records.len() < RECORDS => records.push(record.to_vec()),
            _ => {}
        };
        while reader.read_next(&Selection::ALL, &mut take)? == Progress::Read {}
        let made = env::temp_dir().join(format!("ncclflow-seed-{}-{number}", std::process::id()));
        fs::create_dir(&made)?;
        let session = Session { report: "{}".to_owned(), ..reader.session().clone() };
        let mut writer = RecordingWriter::create(&OutputDir::open(&made)?, session)?;
        writer.bind(|known| known.clone_from(&bindings));
        for block in records.chunks(20) {
            let mut batch = Batch::default();
            block.iter().for_each(|record| batch.push(record));
            writer.push(&Arc::new(batch))?;
            writer.close_block()?;
        }
        writer.write_end("{}")?;
        let segment = fs::read(made.join(FOLDER).join("000001.nfr"))?;
        fs::remove_dir_all(&made)?;
        let input = ncclflow_fuzz::recording_blocks::input_of(&segment);
        fs::write(folder.join(format!("blocks-{number}")), [&[0], input.as_slice()].concat())?;
        fs::write(folder.join(format!("segment-{number}")), [&[1], segment.as_slice()].concat())?;
    }
    Ok(())
}
