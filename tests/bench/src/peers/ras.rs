//! NCCL's reliability service, asked as its client `ncclras` asks it (src/ras/client.cc): lines of text over TCP.

use std::{
    collections::BTreeSet,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};

use super::answer::Answer;

/// RAS itself gives processes that do not answer five seconds and more.
const PATIENCE: Duration = Duration::from_secs(60);
/// An answer is not longer than this.
const MAX_ANSWER: u64 = 1 << 20;

pub(super) fn ask(port: u16) -> Result<Answer> {
    let text = status(port).context("asking NCCL's RAS")?;
    Ok(read(&text))
}

fn status(port: u16) -> Result<String> {
    let stream = TcpStream::connect_timeout(&SocketAddr::from(([127, 0, 0, 1], port)), PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    stream.write_all(b"CLIENT PROTOCOL 2\n")?;
    let mut hello = String::new();
    reader.read_line(&mut hello)?;
    ensure!(hello.starts_with("SERVER PROTOCOL "), "it says `{hello}`");
    stream.write_all(b"VERBOSE STATUS\n")?;
    let mut text = String::new();
    reader.take(MAX_ANSWER).read_to_string(&mut text)?;
    Ok(text)
}

/// Takes the processes that are named under `Errors` and `Warnings` (src/ras/client_support.cc).
fn read(text: &str) -> Answer {
    let at = ["\nErrors\n", "\nWarnings\n"].into_iter().filter_map(|head| text.find(head)).min();
    let troubles = at.and_then(|at| text.get(at..)).unwrap_or_default();
    let pid = |line: &str| {
        let line = line.trim_start();
        let rest = match line.strip_prefix("Process ") {
            Some(rest) => rest,
            None => line.split_once("managed by process ")?.1,
        };
        rest.split_once(" on node ")?.0.parse().ok()
    };
    let pids: BTreeSet<u32> = troubles.lines().filter_map(pid).collect();
    let is_told = |line: &&str| line.starts_with("  ") && !line.trim_start().starts_with("Process ");
    let said: Vec<&str> = troubles.lines().filter(is_told).map(str::trim).take(6).collect();
    Answer { pids, said: if said.is_empty() { "OK".to_owned() } else { said.join("; ") } }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As 2.27.5 answers on the bed.
    #[test]
    fn processes_that_are_named_in_errors_and_warnings_are_taken() {
        let head =
            "Communicators... (0.01s)\n\n    0         1         1         4         4         4   RUNNING";
        let mismatch = format!(
            "{head}  MISMATCH\n\nErrors\n======\n\nWarnings\n========\n\n#0-0 (f7861b2344c2c552) MISMATCH\n  Communicator \
             ranks have different AllReduce operation counts\n  3 ranks have launched up to operation 4\n  Rank 2 has \
             launched up to operation 3 -- GPU 2 managed by process 22316 on node 127.0.0.1\n"
        );
        let answer = read(&mismatch);
        assert_eq!(answer.pids, [22316].into());
        assert!(answer.said.contains("Rank 2 has launched up to operation 3"), "{}", answer.said);
        let gone = format!(
            "{head}  INCOMPLETE\n\nErrors\n======\n\nINCOMPLETE\n  Missing communicator data from 1 job process\n  Process \
             23505 on node 127.0.0.1 managing GPU 2\n\n#0-0 (d132941d6c5ba765) INCOMPLETE\n  Missing communicator data \
             from 1 rank\n  Rank 2 -- GPU 2 managed by process 23505 on node 127.0.0.1\n\nWarnings\n========\n\n"
        );
        assert_eq!(read(&gone).pids, [23505].into());
        let answer = read(&format!("{head}      OK\n\nErrors\n======\n\nWarnings\n========\n\n"));
        assert_eq!((answer.pids, &*answer.said), ([].into(), "OK"));
    }
}
