//! Makes seeds of the targets `dump`, `kernel-records`, `capture`, `merge` and `proc-files`: `memory-seeds CORPUS CAPTURE…`

use std::{env, error::Error, fs, fs::File, io::Read as _, path::PathBuf};

use ncclflow_fuzz::{dump, kernel_records};

/// Bytes of a capture: its bindings, and some records.
const HEAD: u64 = 120_000;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args_os().skip(1).map(PathBuf::from);
    let corpus = arguments.next().ok_or("the folder of the corpora")?;
    let write = |target: &str, name: &str, bytes: &[u8]| fs::write(corpus.join(target).join(name), bytes);
    let mut ranks = 0;
    for library in 0..u8::MAX {
        let Some(seed) = dump::seed(library) else { continue };
        ranks = ranks.max(dump::dump_of(&seed));
        write("dump", &format!("library-{library}"), &seed)?;
    }
    if ranks < 2 {
        return Err(format!("the seeds of `dump` have {ranks} ranks").into());
    }
    for records in [1, 8, 60] {
        write("kernel-records", &format!("records-{records}"), &kernel_records::input_of(records))?;
    }
    for (number, capture) in arguments.enumerate() {
        let mut head = Vec::new();
        File::open(capture)?.take(HEAD).read_to_end(&mut head)?;
        write("capture", &format!("capture-{number}"), &head)?;
    }
    for (kind, name) in [(0, "maps"), (1, "mountinfo")] {
        let text = fs::read(format!("/proc/self/{name}"))?;
        write("proc-files", name, &[&[kind], &*text].concat())?;
    }
    let one = |rank: u32| MERGED.replace("RANK", &rank.to_string());
    write("merge", "one", one(0).as_bytes())?;
    write("merge", "two", format!("{}\0{}", one(0), one(1)).as_bytes())?;
    Ok(())
}

/// A dump of one host, with one rank.
const MERGED: &str = r#"{ "schema": 1, "hosts": ["a"], "unixTime": 5,
"processes": [{ "host": "a", "pid": 7, "name": "x", "state": "running", "libraries": [], "scan": null, "communicators": 1 }],
"communicators": [{ "commHash": "0x1", "name": null, "nRanks": 2, "ranks": [{ "commHash": "0x1", "commName": null,
"nRanks": 2, "rank": RANK, "host": "a", "pid": 7, "processState": "running", "ncclVersion": "2.27.5", "address": 4096,
"node": 0, "nNodes": 1, "localRank": 0, "cudaDev": 0, "nvmlDev": 0, "nChannels": 1,
"counters": { "seqNumber": { "AllReduce": 3 }, "collOpCount": null, "collOpCountIsShared": false, "p2pOpCount": null, "opCount": null },
"status": { "init": null, "asyncResult": null, "proxyResult": null, "abort": null, "finalizeCalled": null, "destroying": null, "revoked": null },
"channels": [], "proxy": { "state": "none", "carriesRings": null, "ops": [] },
"motion": { "readings": 3, "seconds": 1.0, "stepsMoved": false, "countersMoved": false } }],
"verdict": { "state": "stuck", "culprits": [1], "victims": [0], "evidence": [] } }] }"#;
