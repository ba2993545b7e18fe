//! Makes seeds of the target `recording`: the beginning of a recording of each capture. `recording-seeds FOLDER CAPTURE…`

use std::{env, fs, fs::File, io::BufReader, path::PathBuf, sync::Arc};

use flow::model::Sampling;
use ncclflow::{
    capture::{CaptureReader, Item},
    kernel::stream::Batch,
    recording::{FOLDER, RecordingWriter, Session},
    sinks::OutputDir,
};

/// Records of a seed: a few blocks, below the fuzzer's longest input.
const RECORDS: usize = 60;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = env::args_os().skip(1).map(PathBuf::from);
    let folder = arguments.next().ok_or("the folder of the seeds")?;
    for (number, capture) in arguments.enumerate() {
        let (mut reader, header) = CaptureReader::new(BufReader::new(File::open(&capture)?))?;
        let made = env::temp_dir().join(format!("ncclflow-seed-{}-{number}", std::process::id()));
        fs::create_dir(&made)?;
        let session = Session {
            wire_version: header.wire_version,
            report: "{}".to_owned(),
            api: header.api,
            sampling: Sampling::default(),
            steps: true,
            ..Session::default()
        };
        let mut writer = RecordingWriter::create(&OutputDir::open(&made)?, session)?;
        writer.bind(|known| known.clone_from(&header.bindings));
        let mut batch = Batch::default();
        for at in 0..RECORDS {
            if let Item::Record(record) = reader.next_item()? {
                batch.push(record);
            }
            if at % 20 == 19 {
                writer.push(&Arc::new(std::mem::take(&mut batch)))?;
                writer.close_block()?;
            }
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
