//! The system calls that aya does not make for us: loading a program for links to many uprobes, and making links.
//!
//! aya 0.14 knows neither `BPF_TRACE_UPROBE_MULTI` (Linux 6.6) nor a program with that `expected_attach_type`. Everything here is safe to
//! call: what the kernel reads and writes is borrowed for the call, and lengths are those of what is borrowed.

use std::{
    ffi::CStr,
    io,
    mem::size_of,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd},
    ptr,
};

use aya::maps::MapData;
use aya_obj::{
    Function,
    generated::{
        BPF_F_UPROBE_MULTI_RETURN, PERF_FLAG_FD_CLOEXEC, bpf_attach_type, bpf_attr, bpf_cmd, bpf_insn,
        bpf_prog_info, bpf_prog_type, perf_event_attr,
    },
};

/// Instructions of a program and what describes them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Code<'a> {
    pub(super) name: &'a str,
    pub(super) license: &'a CStr,
    pub(super) instructions: &'a [bpf_insn],
    /// The object's types, and which of them the functions are of: what the verifier needs to see each global function once.
    pub(super) types: Option<(BorrowedFd<'a>, &'a Function)>,
}

/// Loads a program for uprobes: many to a link, or one. `log`: room for what the verifier says, or none.
pub(super) fn load_program(code: Code<'_>, is_multi: bool, log: &mut [u8]) -> io::Result<OwnedFd> {
    let mut attr = zeroed();
    // What these point to must live until the call.
    let (functions, lines);
    // SAFETY: every member of the union is integers, for which any bytes, here zeroes, are a value.
    let load = unsafe { &mut attr.__bindgen_anon_3 };
    load.prog_type = bpf_prog_type::BPF_PROG_TYPE_KPROBE as u32;
    if is_multi {
        load.expected_attach_type = bpf_attach_type::BPF_TRACE_UPROBE_MULTI as u32;
    }
    // The last byte stays 0.
    let room = load.prog_name.len() - 1;
    for (to, from) in load.prog_name.iter_mut().zip(code.name.bytes().take(room)) {
        *to = libc::c_char::try_from(from).unwrap_or_default();
    }
    load.insns = address(code.instructions);
    load.insn_cnt = length(code.instructions)?;
    load.license = code.license.as_ptr() as u64;
    if let Some((btf, function)) = code.types {
        functions = function.func_info.func_info_bytes();
        lines = function.line_info.line_info_bytes();
        load.prog_btf_fd = number(btf);
        (load.func_info, load.func_info_cnt) = (address(&functions), length(&function.func_info.func_info)?);
        load.func_info_rec_size = record_size(&functions, &function.func_info.func_info)?;
        (load.line_info, load.line_info_cnt) = (address(&lines), length(&function.line_info.line_info)?);
        load.line_info_rec_size = record_size(&lines, &function.line_info.line_info)?;
    }
    if !log.is_empty() {
        load.log_level = 1;
        (load.log_buf, load.log_size) = (log.as_mut_ptr() as u64, length(log)?);
    }
    call_for_descriptor(bpf_cmd::BPF_PROG_LOAD, &mut attr)
}

/// Loads an object's types.
pub(super) fn load_btf(types: &[u8]) -> io::Result<OwnedFd> {
    let mut attr = zeroed();
    // SAFETY: as above.
    let load = unsafe { &mut attr.__bindgen_anon_7 };
    (load.btf, load.btf_size) = (address(types), length(types)?);
    call_for_descriptor(bpf_cmd::BPF_BTF_LOAD, &mut attr)
}

/// Writes the one element of a map of constants, and forbids that it is written again.
pub(super) fn write_constants(map: &MapData, constants: &[u8]) -> io::Result<()> {
    // The kernel reads as much as a value of the map has.
    if length(constants)? < map.info().map_err(io::Error::other)?.value_size() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let map = map.fd().as_fd();
    let (mut attr, key) = (zeroed(), 0u32);
    // SAFETY: as above.
    let element = unsafe { &mut attr.__bindgen_anon_2 };
    (element.map_fd, element.key) = (number(map), ptr::from_ref(&key) as u64);
    element.__bindgen_anon_1.value = address(constants);
    call(bpf_cmd::BPF_MAP_UPDATE_ELEM, &mut attr)?;
    let mut attr = zeroed();
    // SAFETY: as above.
    unsafe { &mut attr.__bindgen_anon_2 }.map_fd = number(map);
    call(bpf_cmd::BPF_MAP_FREEZE, &mut attr)?;
    Ok(())
}

/// The number by which the kernel knows a program.
pub(super) fn program_id(program: BorrowedFd<'_>) -> io::Result<u32> {
    // SAFETY: integers, for which zeroes are a value.
    let mut info: bpf_prog_info = unsafe { std::mem::zeroed() };
    let mut attr = zeroed();
    // SAFETY: as above.
    let ask = unsafe { &mut attr.info };
    (ask.bpf_fd, ask.info) = (number(program), ptr::from_mut(&mut info) as u64);
    ask.info_len = u32::try_from(size_of::<bpf_prog_info>()).unwrap_or(0);
    call(bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, &mut attr)?;
    Ok(info.id)
}

/// Where a link to many uprobes goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places<'a> {
    pub(super) path: &'a CStr,
    /// In the file.
    pub(super) offsets: &'a [u64],
    /// What the program is told at each of them.
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
    // SAFETY: as above.
    let link = unsafe { &mut attr.link_create };
    link.__bindgen_anon_1.prog_fd = number(program);
    link.attach_type = bpf_attach_type::BPF_TRACE_UPROBE_MULTI as u32;
    // SAFETY: as above.
    let many = unsafe { &mut link.__bindgen_anon_3.uprobe_multi };
    many.path = places.path.as_ptr() as u64;
    (many.offsets, many.cookies) = (address(places.offsets), address(places.cookies));
    many.cnt = length(places.offsets)?;
    many.flags = if places.at_return { BPF_F_UPROBE_MULTI_RETURN } else { 0 };
    many.pid = places.pid;
    call_for_descriptor(bpf_cmd::BPF_LINK_CREATE, &mut attr)
}

/// Links a program to a performance event, with a cookie (Linux 5.15).
pub(super) fn link_event(program: BorrowedFd<'_>, event: BorrowedFd<'_>, cookie: u64) -> io::Result<OwnedFd> {
    let mut attr = zeroed();
    // SAFETY: as above.
    let link = unsafe { &mut attr.link_create };
    link.__bindgen_anon_1.prog_fd = number(program);
    link.__bindgen_anon_2.target_fd = number(event);
    link.attach_type = bpf_attach_type::BPF_PERF_EVENT as u32;
    link.__bindgen_anon_3.perf_event.bpf_cookie = cookie;
    call_for_descriptor(bpf_cmd::BPF_LINK_CREATE, &mut attr)
}

/// Opens a performance event that is a uprobe: in one process, or in all. `kind` and `config` are those of the unit `uprobe`.
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
    // Of all processes on one CPU: the program runs on all of them nevertheless.
    let (pid, cpu) = match pid {
        Some(pid) => (libc::pid_t::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?, -1),
        None => (-1, 0),
    };
    // SAFETY: `attr` and the path that it points to live until the call is over, and the size is that of `attr`.
    let made = unsafe {
        libc::syscall(libc::SYS_perf_event_open, ptr::from_ref(&attr), pid, cpu, -1, PERF_FLAG_FD_CLOEXEC)
    };
    // SAFETY: perf_event_open makes a descriptor.
    unsafe { descriptor(made) }
}

fn zeroed() -> bpf_attr {
    // SAFETY: a union of structs of integers, for which zeroes are a value. All bytes must be 0: the kernel refuses others in members that
    // it does not know.
    unsafe { std::mem::zeroed() }
}

/// The attributes must point to nothing but what lives until the call is over, and is as long as they say: see each caller.
fn call(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<libc::c_long> {
    // SAFETY: the size is that of `attr`; the callers, all above, see to what it points to.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command as u32, ptr::from_mut(attr), size_of::<bpf_attr>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// For commands that make a descriptor.
fn call_for_descriptor(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<OwnedFd> {
    let made = call(command, attr)?;
    // SAFETY: this command makes a descriptor (and sets O_CLOEXEC, as all of bpf(2) do).
    unsafe { descriptor(made) }
}

/// # Safety
/// `made` is what a system call gave that makes a descriptor, or fails with a negative number.
unsafe fn descriptor(made: libc::c_long) -> io::Result<OwnedFd> {
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    let descriptor = RawFd::try_from(made).map_err(io::Error::other)?;
    // SAFETY: it is new, and nobody else's.
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

    /// What is too short never gets to the kernel, which would read behind its end.
    #[test]
    fn lengths_must_fit() {
        let file = File::open("/dev/null").unwrap();
        let places = Places { path: c"/", offsets: &[1, 2], cookies: &[3], pid: 0, at_return: false };
        assert_eq!(link_many(file.as_fd(), places).unwrap_err().kind(), io::ErrorKind::InvalidInput);
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
            load_program(
                Code { name: "none", license: c"GPL", instructions: &[], types: None },
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
