//! Loads the eBPF object: sets its globals, makes its maps, relocates its instructions, and loads
//! its programs on first use.
//!
//! aya-obj parses and relocates the object. docs/ARCHITECTURE.md ("The object is loaded by our own code")
//! says why aya's own loader does not do the rest.

use std::{
    collections::{HashMap, HashSet},
    ffi::CString,
    fmt, io,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
    thread,
};

use anyhow::{Context as _, Result, anyhow, bail};
use aya::maps::{Map, MapData};
use aya_obj::{
    EbpfSectionKind, Function, Map as Description, Object, btf::BtfFeatures, generated::bpf_map_type,
};
use rustix::param::page_size;

use super::{bpf, link::LinkKind};

/// What to set in the object before it is loaded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings<'a> {
    /// Bytes of globals, by name.
    pub(super) globals: &'a [(&'a str, &'a [u8])],
    /// Elements (a ring buffer's: bytes) of maps, by name.
    pub(super) entries: &'a [(&'a str, u32)],
    pub(super) links: LinkKind,
}

/// The programs of an object.
#[derive(Debug)]
pub(super) struct Programs {
    license: CString,
    functions: HashMap<String, Function>,
    /// The object's BTF, if the kernel took it.
    btf: Option<OwnedFd>,
    links: LinkKind,
    loaded: HashMap<&'static str, OwnedFd>,
    /// The instructions refer to the maps by these descriptors.
    _maps: Vec<OwnedFd>,
}

/// The kernel refused a program.
#[derive(Debug)]
pub(super) struct LoadError {
    error: io::Error,
    /// The last lines of the verifier's log.
    log: String,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BPF_PROG_LOAD failed")?;
        if !self.log.is_empty() {
            write!(f, "; the end of the verifier's log:\n{}\n", self.log)?;
        }
        Ok(())
    }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Makes the maps of an object, by name, and prepares its programs.
pub(super) fn open(object: &[u8], settings: Settings<'_>) -> Result<(Programs, HashMap<String, Map>)> {
    let mut object = Object::parse(object)?;
    object.patch_map_data(settings.globals.iter().map(|(name, bytes)| (*name, (*bytes, true))).collect())?;
    let is_ring = |map: &Description| map.map_type() == bpf_map_type::BPF_MAP_TYPE_RINGBUF as u32;
    for (name, map) in &mut object.maps {
        if let Some((_, entries)) = settings.entries.iter().find(|(of, _)| of == name) {
            map.set_max_entries(*entries);
        }
        if is_ring(map) {
            map.set_max_entries(ring_bytes(map.max_entries(), page_size()));
            map.set_value_size(0);
        }
    }
    // The kernel allocates and clears all pages of a ring buffer when it makes it. That takes as long as
    // everything else here, so a thread of its own does it.
    let (rings, others): (Vec<_>, Vec<_>) = object.maps.drain().partition(|(_, map)| is_ring(map));
    let (btf, made) = thread::scope(|scope| -> Result<_> {
        let rings = thread::Builder::new().spawn_scoped(scope, || make(rings, None));
        let rings = rings.context("starting a thread")?;
        let btf = load_btf(&mut object)?;
        let mut made = make(others, btf.as_ref().map(OwnedFd::as_fd))?;
        made.extend(rings.join().map_err(|_| anyhow!("making the ring buffers failed"))??);
        Ok((btf, made))
    })?;
    let text = object.functions.keys().map(|(section, _)| *section).collect::<HashSet<_>>();
    let places = made.iter().map(|map| (map.name.as_str(), map.held.as_raw_fd(), &map.description));
    object.relocate_maps(places, &text)?;
    object.relocate_calls(&text)?;
    let functions = object
        .programs
        .iter()
        .filter_map(|(name, program)| {
            Some((name.clone(), object.functions.get(&program.function_key())?.clone()))
        })
        .collect();
    let (license, links) = (object.license, settings.links);
    let (held, maps) = made.into_iter().map(|map| (map.held, (map.name, map.map))).unzip();
    Ok((Programs { license, functions, btf, links, loaded: HashMap::new(), _maps: held }, maps))
}

/// A map in the kernel.
struct Made {
    name: String,
    description: Description,
    map: Map,
    /// A copy of its descriptor: `map` can be closed before the last program is loaded.
    held: OwnedFd,
}

fn make(maps: Vec<(String, Description)>, btf: Option<BorrowedFd<'_>>) -> Result<Vec<Made>> {
    let make = |(name, description): (String, Description)| {
        let map = MapData::create(description.clone(), &name, btf)?;
        match description.section_kind() {
            EbpfSectionKind::Rodata => bpf::write_constants(&map, description.data())
                .with_context(|| format!("writing the constants `{name}`"))?,
            EbpfSectionKind::Data | EbpfSectionKind::Bss => {
                bail!("the eBPF object has variables in `{name}`")
            }
            _ => {}
        }
        let held = map.fd().as_fd().try_clone_to_owned().context("keeping a map open")?;
        Ok(Made { name, description, map: Map::from_map_data(map)?, held })
    };
    maps.into_iter().map(make).collect()
}

/// Loads the object's BTF. `None` if the kernel takes none: verifying the programs then takes longer.
fn load_btf(object: &mut Object) -> Result<Option<OwnedFd>> {
    let original = object.btf.clone();
    // Kernels from 6.0 on know all of these.
    let all = BtfFeatures::new(true, true, true, true, true, true, true, true);
    if let Some(btf) = object.fixup_and_sanitize_btf(&all)?
        && let Ok(btf) = bpf::load_btf(&btf.to_bytes())
    {
        return Ok(Some(btf));
    }
    object.btf = original;
    let Some(known) = aya::features().btf() else { return Ok(None) };
    Ok(object.fixup_and_sanitize_btf(known)?.and_then(|btf| bpf::load_btf(&btf.to_bytes()).ok()))
}

/// Bytes of a ring buffer of at least `wanted` bytes: a power of two of pages.
fn ring_bytes(wanted: u32, page: usize) -> u32 {
    let page = u32::try_from(page).unwrap_or(4096);
    wanted
        .div_ceil(page)
        .max(1)
        .checked_next_power_of_two()
        .and_then(|pages| pages.checked_mul(page))
        .unwrap_or(wanted)
}

impl Programs {
    /// Loads those of these programs that are not loaded yet, each in a thread of its own:
    /// verifying one takes milliseconds.
    pub(super) fn load(&mut self, names: &[&'static str]) -> Result<()> {
        let missing: Vec<&'static str> =
            names.iter().copied().filter(|name| !self.loaded.contains_key(name)).collect();
        let Some((first, others)) = missing.split_first() else { return Ok(()) };
        let this = &*self;
        let outcomes = thread::scope(|scope| -> Result<Vec<_>> {
            let start = |name: &&'static str| {
                let name = *name;
                thread::Builder::new().spawn_scoped(scope, move || (name, this.load_one(name)))
            };
            let others: Vec<_> =
                others.iter().map(start).collect::<Result<_, _>>().context("starting a thread")?;
            let mut outcomes = vec![(*first, this.load_one(first))];
            for other in others {
                outcomes.push(other.join().map_err(|_| anyhow!("loading an eBPF program failed"))?);
            }
            Ok(outcomes)
        })?;
        for (name, outcome) in outcomes {
            self.loaded.insert(name, outcome.map_err(|error| refusal(name, error))?);
        }
        Ok(())
    }

    /// A loaded program.
    pub(super) fn get(&self, name: &str) -> Result<BorrowedFd<'_>> {
        let program =
            self.loaded.get(name).with_context(|| format!("the eBPF program `{name}` is not loaded"))?;
        Ok(program.as_fd())
    }

    fn load_one(&self, name: &str) -> Result<OwnedFd> {
        let function =
            self.functions.get(name).with_context(|| format!("the eBPF object has no program `{name}`"))?;
        let code = bpf::Code {
            name,
            license: &self.license,
            instructions: &function.instructions,
            btf: self.btf.as_ref().map(|btf| (btf.as_fd(), function)),
        };
        Ok(load(code, self.links == LinkKind::Multi)?)
    }
}

/// Adds the program's name, and what may help.
fn refusal(name: &str, error: anyhow::Error) -> anyhow::Error {
    // The verifier says EACCES.
    let is_denied = error
        .downcast_ref::<LoadError>()
        .is_some_and(|refused| refused.error.raw_os_error() == Some(libc::EPERM));
    let hint = match name {
        _ if is_denied => " (run as root)",
        "walk" => " (`ncclflow record --probes per-call` does without it)",
        _ => "",
    };
    error.context(format!("the kernel refused the eBPF program `{name}`{hint}"))
}

/// Loads a program; if the kernel refuses it, tries once more with a log, to tell why.
fn load(code: bpf::Code<'_>, is_multi: bool) -> Result<OwnedFd, LoadError> {
    /// A signal makes the verifier stop with EAGAIN.
    const TRIES: u32 = 5;
    /// The largest buffer that every kernel takes.
    const LOG_BYTES: usize = 0x00ff_ffff;
    const LINES: usize = 20;
    let mut tries = 0;
    let error = loop {
        tries += 1;
        match bpf::load_program(code, is_multi, &mut []) {
            Ok(program) => return Ok(program),
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) && tries < TRIES => {}
            Err(error) => break error,
        }
    };
    if error.raw_os_error() == Some(libc::EPERM) {
        return Err(LoadError { error, log: String::new() });
    }
    let mut log = vec![0; LOG_BYTES];
    match bpf::load_program(code, is_multi, &mut log) {
        Ok(program) => Ok(program),
        Err(error) => {
            let text = log.split(|byte| *byte == 0).next().unwrap_or_default();
            let text = String::from_utf8_lossy(text);
            let lines: Vec<&str> = text.lines().collect();
            let last = lines.get(lines.len().saturating_sub(LINES)..).unwrap_or_default();
            Err(LoadError { error, log: last.join("\n") })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_buffer_has_a_power_of_two_of_pages() {
        assert_eq!(ring_bytes(16 << 20, 4096), 16 << 20);
        assert_eq!(ring_bytes(3 << 20, 4096), 4 << 20);
        assert_eq!(ring_bytes(1, 4096), 4096);
        assert_eq!(ring_bytes(0, 4096), 4096);
        assert_eq!(ring_bytes(128 << 10, 65536), 128 << 10);
        assert_eq!(ring_bytes(u32::MAX, 4096), u32::MAX, "left for the kernel to refuse");
    }
}
