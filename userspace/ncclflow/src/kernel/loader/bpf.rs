//! The system calls that aya 0.14 does not make: loading a program for links to many uprobes, and making
//! links.
//!
//! Every function here but [`call`] and [`descriptor`] is safe: it borrows what the kernel reads and writes
//! until the call is over, and takes each length from what it borrowed.

use std::{
    ffi::CStr,
    fs, io,
    mem::size_of,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd},
    ptr,
};

use aya::maps::MapData;
use aya_obj::{
    Function,
    generated::{
        BPF_F_UPROBE_MULTI_RETURN, PERF_FLAG_FD_CLOEXEC, bpf_attach_type, bpf_attr, bpf_cmd, bpf_insn,
        bpf_prog_type, perf_event_attr,
    },
};

/// Instructions of a program and what describes them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Code<'a> {
    pub(super) name: &'a str,
    pub(super) license: &'a CStr,
    pub(super) instructions: &'a [bpf_insn],
    /// The object's BTF, and the function's own records. The verifier needs both to check each
    /// global function only once.
    pub(super) btf: Option<(BorrowedFd<'a>, &'a Function)>,
}

/// Loads a program for uprobes. `is_multi`: for links to many. `log`: buffer for the verifier's log; empty
/// for none.
pub(super) fn load_program(code: Code<'_>, is_multi: bool, log: &mut [u8]) -> io::Result<OwnedFd> {
    let mut attr = zeroed();
    // `attr` points to these, so they live until the end of the function.
    let (functions, lines);
    attr.__bindgen_anon_3.prog_type = bpf_prog_type::BPF_PROG_TYPE_KPROBE as u32;
    if is_multi {
        attr.__bindgen_anon_3.expected_attach_type = bpf_attach_type::BPF_TRACE_UPROBE_MULTI as u32;
    }
    attr.__bindgen_anon_3.prog_name = program_name(code.name);
    attr.__bindgen_anon_3.insns = address(code.instructions);
    attr.__bindgen_anon_3.insn_cnt = length(code.instructions)?;
    attr.__bindgen_anon_3.license = code.license.as_ptr() as u64;
    if let Some((btf, function)) = code.btf {
        functions = function.func_info.func_info_bytes();
        lines = function.line_info.line_info_bytes();
        attr.__bindgen_anon_3.prog_btf_fd = number(btf);
        attr.__bindgen_anon_3.func_info = address(&functions);
        attr.__bindgen_anon_3.func_info_cnt = length(&function.func_info.func_info)?;
        attr.__bindgen_anon_3.func_info_rec_size = record_size(&functions, &function.func_info.func_info)?;
        attr.__bindgen_anon_3.line_info = address(&lines);
        attr.__bindgen_anon_3.line_info_cnt = length(&function.line_info.line_info)?;
        attr.__bindgen_anon_3.line_info_rec_size = record_size(&lines, &function.line_info.line_info)?;
    }
    if !log.is_empty() {
        attr.__bindgen_anon_3.log_level = 1;
        attr.__bindgen_anon_3.log_buf = log.as_mut_ptr() as u64;
        attr.__bindgen_anon_3.log_size = length(log)?;
    }
    // SAFETY: instructions, license, function and line records are borrowed or owned here, with their own
    // lengths (the license ends with 0); the kernel writes `log` only, which is borrowed mutably.
    // BPF_PROG_LOAD makes a descriptor.
    unsafe { call_for_descriptor(bpf_cmd::BPF_PROG_LOAD, &mut attr) }
}

/// The name as bpf(2) takes it: cut, and ended with 0.
fn program_name(name: &str) -> [libc::c_char; 16] {
    let mut cut = [0; 16];
    for (to, from) in cut.iter_mut().take(15).zip(name.bytes()) {
        *to = libc::c_char::try_from(from).unwrap_or_default();
    }
    cut
}

/// Loads an object's BTF.
pub(super) fn load_btf(btf: &[u8]) -> io::Result<OwnedFd> {
    let mut attr = zeroed();
    attr.__bindgen_anon_7.btf = address(btf);
    attr.__bindgen_anon_7.btf_size = length(btf)?;
    // SAFETY: `btf` is borrowed, with its own length; no log is asked for. BPF_BTF_LOAD makes a descriptor.
    unsafe { call_for_descriptor(bpf_cmd::BPF_BTF_LOAD, &mut attr) }
}

/// Writes the only element of a map of constants, and freezes the map, so that the verifier knows the values.
pub(super) fn write_constants(map: &MapData, constants: &[u8]) -> io::Result<()> {
    let key = 0u32;
    let info = map.info().map_err(io::Error::other)?;
    // The kernel reads as many bytes as the map's keys and values have.
    if size_of_val(&key) != info.key_size() as usize || constants.len() < info.value_size() as usize {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let map = map.fd().as_fd();
    let mut attr = zeroed();
    attr.__bindgen_anon_2.map_fd = number(map);
    attr.__bindgen_anon_2.key = ptr::from_ref(&key) as u64;
    attr.__bindgen_anon_2.__bindgen_anon_1.value = address(constants);
    // SAFETY: `key` and `constants` live until the call is over, and are long enough (above).
    unsafe { call(bpf_cmd::BPF_MAP_UPDATE_ELEM, &mut attr) }?;
    let mut attr = zeroed();
    attr.__bindgen_anon_2.map_fd = number(map);
    // SAFETY: BPF_MAP_FREEZE takes no address.
    unsafe { call(bpf_cmd::BPF_MAP_FREEZE, &mut attr) }?;
    Ok(())
}

/// The id by which the kernel knows a program.
pub(super) fn program_id(program: BorrowedFd<'_>) -> io::Result<u32> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", program.as_raw_fd()))?;
    let id = info.lines().find_map(|line| line.strip_prefix("prog_id:")?.trim().parse().ok());
    id.ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// Where a link to many uprobes goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places<'a> {
    pub(super) path: &'a CStr,
    /// In the file.
    pub(super) offsets: &'a [u64],
    /// The cookie of each offset.
    pub(super) cookies: &'a [u64],
    /// The only process whose hits count; 0 for all.
    pub(super) pid: u32,
    pub(super) at_return: bool,
}

/// Makes one link to many uprobes.
pub(super) fn link_many(program: BorrowedFd<'_>, places: Places<'_>) -> io::Result<OwnedFd> {
    // The kernel reads as many cookies as there are offsets.
    if places.cookies.len() != places.offsets.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut attr = zeroed();
    attr.link_create.__bindgen_anon_1.prog_fd = number(program);
    attr.link_create.attach_type = bpf_attach_type::BPF_TRACE_UPROBE_MULTI as u32;
    attr.link_create.__bindgen_anon_3.uprobe_multi.path = places.path.as_ptr() as u64;
    attr.link_create.__bindgen_anon_3.uprobe_multi.offsets = address(places.offsets);
    attr.link_create.__bindgen_anon_3.uprobe_multi.cookies = address(places.cookies);
    attr.link_create.__bindgen_anon_3.uprobe_multi.cnt = length(places.offsets)?;
    attr.link_create.__bindgen_anon_3.uprobe_multi.flags =
        if places.at_return { BPF_F_UPROBE_MULTI_RETURN } else { 0 };
    attr.link_create.__bindgen_anon_3.uprobe_multi.pid = places.pid;
    // SAFETY: path (ended with 0), offsets and cookies (as many, above) are borrowed.
    // BPF_LINK_CREATE makes a descriptor.
    unsafe { call_for_descriptor(bpf_cmd::BPF_LINK_CREATE, &mut attr) }
}

/// Links a program to a performance event, with a cookie (Linux 5.15).
pub(super) fn link_event(program: BorrowedFd<'_>, event: BorrowedFd<'_>, cookie: u64) -> io::Result<OwnedFd> {
    let mut attr = zeroed();
    attr.link_create.__bindgen_anon_1.prog_fd = number(program);
    attr.link_create.__bindgen_anon_2.target_fd = number(event);
    attr.link_create.attach_type = bpf_attach_type::BPF_PERF_EVENT as u32;
    attr.link_create.__bindgen_anon_3.perf_event.bpf_cookie = cookie;
    // SAFETY: with BPF_PERF_EVENT, BPF_LINK_CREATE takes no address. It makes a descriptor.
    unsafe { call_for_descriptor(bpf_cmd::BPF_LINK_CREATE, &mut attr) }
}

/// Opens a performance event that is a uprobe: in one process, or in all. `kind` and `config` are
/// those of the unit `uprobe`.
pub(super) fn open_event(
    (kind, config): (u32, u64),
    path: &CStr,
    offset: u64,
    pid: Option<u32>,
) -> io::Result<OwnedFd> {
    // SAFETY: integers, and unions of integers, for which zeroes are a value.
    let mut attr: perf_event_attr = unsafe { std::mem::zeroed() };
    attr.size = u32::try_from(size_of::<perf_event_attr>()).unwrap_or(0);
    (attr.type_, attr.config) = (kind, config);
    attr.__bindgen_anon_3.uprobe_path = path.as_ptr() as u64;
    attr.__bindgen_anon_4.probe_offset = offset;
    // An event of all processes is opened on one CPU; the program runs on every CPU nevertheless.
    let (pid, cpu) = match pid {
        Some(pid) => (libc::pid_t::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?, -1),
        None => (-1, 0),
    };
    // SAFETY: `attr`, whose size it states, and the path, ended with 0, live until the call is over.
    let made = unsafe {
        libc::syscall(libc::SYS_perf_event_open, ptr::from_ref(&attr), pid, cpu, -1, PERF_FLAG_FD_CLOEXEC)
    };
    // SAFETY: perf_event_open makes a descriptor.
    unsafe { descriptor(made) }
}

fn zeroed() -> bpf_attr {
    // SAFETY: a union of structs of integers, for which zeroes are a value. All bytes must be 0: the kernel
    // refuses others in members that it does not know.
    unsafe { std::mem::zeroed() }
}

/// bpf(2).
///
/// # Safety
/// Each address in the members of `attr` that `command` uses is 0, or that of memory that lives until the
/// call is over and has the length that `attr` (or the map that `attr` names) states; nobody else uses
/// what the command writes.
unsafe fn call(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<libc::c_long> {
    // SAFETY: `attr` is borrowed, the size is its own, and the caller answers for what it points to.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command as u32, ptr::from_mut(attr), size_of::<bpf_attr>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// bpf(2) with a command that makes a descriptor.
///
/// # Safety
/// As for [`call`]; and the command returns a new descriptor.
unsafe fn call_for_descriptor(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<OwnedFd> {
    // SAFETY: the caller answers for what `attr` points to.
    let made = unsafe { call(command, attr) }?;
    // SAFETY: the caller says that it is a new descriptor (bpf(2) sets O_CLOEXEC on each).
    unsafe { descriptor(made) }
}

/// # Safety
/// `made` is what a system call returned that makes a descriptor, or fails with a negative number.
unsafe fn descriptor(made: libc::c_long) -> io::Result<OwnedFd> {
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    let descriptor = RawFd::try_from(made).map_err(io::Error::other)?;
    // SAFETY: it is new, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn number(descriptor: BorrowedFd<'_>) -> u32 {
    // A live descriptor is never negative.
    descriptor.as_raw_fd().cast_unsigned()
}

fn address<T>(of: &[T]) -> u64 {
    of.as_ptr() as u64
}

fn length<T>(of: &[T]) -> io::Result<u32> {
    u32::try_from(of.len()).map_err(io::Error::other)
}

/// Bytes of each of the records.
fn record_size<T>(bytes: &[u8], records: &[T]) -> io::Result<u32> {
    length(bytes).map(|bytes| bytes.checked_div(u32::try_from(records.len()).unwrap_or(0)).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    /// Too few cookies never get to the kernel, which would read behind their end.
    #[test]
    fn lengths_must_fit() {
        let file = File::open("/dev/null").unwrap();
        let places = Places { path: c"/", offsets: &[1, 2], cookies: &[3], pid: 0, at_return: false };
        let error = link_many(file.as_fd(), places).unwrap_err();
        assert_eq!(error.raw_os_error(), None, "the kernel was asked: {error}");
    }

    #[test]
    fn a_long_name_is_cut_and_ends_with_0() {
        let bytes = |name| program_name(name).map(|letter| u8::try_from(letter).unwrap());
        assert_eq!(bytes("a_name_of_20_letters"), *b"a_name_of_20_le\0");
        assert_eq!(bytes("walk"), *b"walk\0\0\0\0\0\0\0\0\0\0\0\0");
    }

    /// With privileges or without: what is no map, program or event is refused.
    #[test]
    fn what_is_no_kernel_object_is_refused() {
        let file = File::open("/dev/null").unwrap();
        let places = Places { path: c"/", offsets: &[1], cookies: &[3], pid: 0, at_return: true };
        let refused = [
            link_many(file.as_fd(), places).err(),
            link_event(file.as_fd(), file.as_fd(), 1).err(),
            open_event((u32::MAX, 0), c"/dev/null", 0, Some(std::process::id())).err(),
            open_event((1, 0), c"/dev/null", 0, Some(u32::MAX)).err(),
            load_btf(&[1; 24]).err(),
            program_id(file.as_fd()).err(),
            load_program(
                Code { name: "none", license: c"GPL", instructions: &[], btf: None },
                true,
                &mut [0; 64],
            )
            .err(),
        ];
        for (at, error) in refused.into_iter().enumerate() {
            let error = error.unwrap_or_else(|| panic!("{at} was taken"));
            assert!(error.raw_os_error().is_some() || error.kind() == io::ErrorKind::InvalidInput, "{error}");
        }
    }
}
