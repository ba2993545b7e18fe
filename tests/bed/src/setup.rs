//! Prepares a library on disk to run in this process: settings, NVML double, replaced runtime, executor of
//! kernels. Has also the mode in which all ranks are threads.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;

use anyhow::{Context, Result};

use crate::call_log::CallLog;
use crate::controller::{self, Outcome};
use crate::emulator;
use crate::library::{self, Library};
use crate::link::{Command, Event, ThreadLink};
use crate::nccl_api::{Api, UniqueId};
use crate::options::Options;
use crate::runtime::{self, device};
use crate::{environment, mapped, patch, rank};

/// A library that is ready to run, with the version that it reports.
#[derive(Debug)]
pub(crate) struct Nccl {
    pub(crate) api: Api,
    pub(crate) version: String,
    pub(crate) emulator: emulator::Shared,
}

pub(crate) fn prepare(options: &Options) -> Result<Nccl> {
    if options.ballast > 0 {
        // For as long as the process lives.
        Box::leak(vec![0x5a_u8; options.ballast << 20].into_boxed_slice());
    }
    mapped::map_and_look(options.mapped << 30)?;
    runtime::hidden_pages::hide_from(options.hide_arguments.unwrap_or(u64::MAX));
    environment::apply(options)?;
    library::preload(&nvml_double(options)?)?;
    if let Some(path) = &options.allocations {
        runtime::memory::note_in(path)?;
    }
    if let Some(unused) = &options.also_load {
        library::load(unused)?;
    }
    let library = Library::open(&options.library, options.symbols())?;
    // CUDA 12 renamed this function when its struct grew; CUDA 13 has the plain name again.
    let cuda_13 = !library.has_runtime_function("cudaGetDeviceProperties_v2");
    device::set_version(if cuda_13 { 13_000 } else { 12_080 });
    let replacements: HashMap<&str, usize> = runtime::replacements();
    let outcome = patch::replace_runtime(&library, &replacements)?;
    if std::env::var_os("NCCLFLOW_BED_VERBOSE").is_some() {
        crate::say(&format!("runtime functions: {outcome:?}"));
    }
    let emulator = emulator::prepare(options, &library)?;
    runtime::launch::set_executor(library.kernels().clone(), emulator::executor(&emulator));
    let api = Api::load(&library, CallLog::create(options.call_log.as_deref())?)?;
    let [major, minor, patch] = api.version()?;
    environment::apply_for_version(options, (major, minor));
    Ok(Nccl { api, version: format!("{major}.{minor}.{patch}"), emulator })
}

fn nvml_double(options: &Options) -> Result<PathBuf> {
    if let Some(path) = &options.nvml {
        return Ok(path.clone());
    }
    let this = std::env::current_exe().context("where is this program?")?;
    Ok(this.with_file_name("libnvidia_ml.so"))
}

pub(crate) fn unique_ids(nccl: &Nccl, options: &Options) -> Result<Vec<String>> {
    (0..options.comms).map(|_| nccl.api.unique_id().map(|id| to_hex(&id))).collect()
}

fn to_hex(id: &UniqueId) -> String {
    let digit = |value: u8| char::from_digit(u32::from(value), 16).unwrap_or('?');
    id.0.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

pub(crate) fn from_hex(text: &str) -> Result<UniqueId> {
    let mut id = UniqueId([0; 128]);
    for (index, byte) in id.0.iter_mut().enumerate() {
        let digits = text.get(2 * index..2 * index + 2).context("a unique id is too short")?;
        *byte = u8::from_str_radix(digits, 16)?;
    }
    Ok(id)
}

/// All ranks as threads of this process.
pub(crate) fn run_threads(options: &Options) -> Result<Outcome> {
    let nccl = prepare(options)?;
    let ids = unique_ids(&nccl, options)?;
    let (events, inbox) = mpsc::channel();
    thread::scope(|scope| {
        let mut commands = Vec::new();
        for rank in 0..options.ranks {
            let (command, hears) = mpsc::channel();
            let link = ThreadLink { events: events.clone(), commands: hears };
            let nccl = &nccl;
            thread::Builder::new()
                .name(format!("bed rank {rank}"))
                .spawn_scoped(scope, move || rank::run(options, nccl, rank, link))?;
            commands.push(command);
        }
        drop(events);
        for command in &commands {
            command.send(Command::Connect(ids.clone())).context("a rank is gone")?;
        }
        let mut send = |rank: usize, command: Command| {
            // A rank that is gone has reported it, or is found missing at the deadline.
            let _gone = commands[rank].send(command);
        };
        let pids = vec![std::process::id()];
        let code = match controller::run(options, &pids, &inbox, &mut send) {
            Ok(outcome) if !outcome.is_final() => return Ok(outcome),
            Ok(outcome) => outcome.code(),
            Err(error) => {
                crate::say(&format!("{error:#}"));
                1
            }
        };
        // Threads that hang in NCCL would hold the scope; the process ends here.
        // SAFETY: all that was to be said is written.
        unsafe { libc::_exit(code) }
    })
}

/// Errors that a rank can only pass on.
pub(crate) fn failed(rank: u32, error: &anyhow::Error) -> Event {
    Event::Failed { rank, error: format!("{error:#}") }
}
