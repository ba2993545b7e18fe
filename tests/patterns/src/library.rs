//! The library in this process: opened by the system's loader, `ncclProxySaveOp` found by its symbol.

use std::ffi::{CStr, CString, c_void};
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use nccl_library::elf::Image;
use nccl_library::{
    layouts::Layouts,
    nccl::NcclVersion,
    symbols::{FunctionSpec, Request, nccl_request, resolve},
};

/// `ncclResult_t ncclProxySaveOp(struct ncclComm*, struct ncclProxyOp*, bool* justInquire)`, in
/// every version from 2.16 on.
type SaveOp = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut bool) -> i32;

/// The version and the offsets of fields come from the library's file.
const ANCHOR: &CStr = c"ncclGetVersion";

#[derive(Debug)]
pub(crate) struct Library {
    save_op: SaveOp,
    /// Address at which the beginning of the file is mapped.
    base: usize,
    version: NcclVersion,
    pub(crate) layouts: Layouts,
}

impl Library {
    pub(crate) fn open(path: &Path, symbols: &Path) -> Result<Self> {
        let wanted = nccl_request();
        let anchor = FunctionSpec::optional("ncclGetVersion", &[], "the address of the library");
        let functions = wanted.functions.into_iter().filter(|spec| spec.name == "ncclProxySaveOp");
        let request = Request { functions: functions.chain([anchor]).collect(), ..wanted };
        let resolution = resolve(&Image::open(symbols)?, &request)?;
        if Image::open(path)?.build_id() != resolution.build_id.as_ref() {
            bail!("`{}` is of another build than `{}`", symbols.display(), path.display());
        }
        let address = |name: &str| match resolution.functions(name) {
            [function] => Ok(usize::try_from(function.vaddr.0)?),
            others => bail!("`{}` has {} copies of {name}", symbols.display(), others.len()),
        };
        let name = CString::new(path.as_os_str().as_encoded_bytes()).context("the path has a NUL byte")?;
        // SAFETY: a C string; the library's constructors register its kernels and do nothing else.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            bail!("`{}` cannot be opened", path.display());
        }
        // SAFETY: the handle is a library's.
        let anchored = unsafe { libc::dlsym(handle, ANCHOR.as_ptr()) } as usize;
        let offset = address("ncclProxySaveOp")?.wrapping_sub(address("ncclGetVersion")?);
        let entry = anchored.wrapping_add(offset) as *const c_void;
        // SAFETY: the address of that very function in this process, whose signature is the same in all
        // versions.
        let save_op = unsafe { std::mem::transmute::<*const c_void, SaveOp>(entry) };
        let version = resolution.nccl_version.context("the library does not state its version")?;
        let base = anchored.wrapping_sub(address("ncclGetVersion")?);
        Ok(Self { save_op, base, version, layouts: resolution.layouts })
    }

    /// The address in this process of what the file says is at `vaddr`.
    pub(crate) fn runtime(&self, vaddr: usize) -> usize {
        self.base.wrapping_add(vaddr)
    }

    pub(crate) fn version(&self) -> String {
        self.version.to_string()
    }

    /// Whether the library's release of NCCL 2 is this one or a later one.
    pub(crate) fn is_from(&self, minor: u32) -> bool {
        (self.version.major, self.version.minor) >= (2, minor)
    }

    /// Calls the function. Gives whether a peer needs a proxy; `None` in the post pass, which does not say.
    pub(crate) fn save_op(&self, comm: usize, op: usize, plan_pass: bool) -> Result<Option<bool>> {
        let mut needed = false;
        let inquire: *mut bool = if plan_pass { &raw mut needed } else { std::ptr::null_mut() };
        // SAFETY: both are memory of the sizes that the library's structs have, filled as it fills them.
        let result = unsafe { (self.save_op)(comm as *mut c_void, op as *mut c_void, inquire) };
        if result != 0 {
            bail!("ncclProxySaveOp gave {result}");
        }
        Ok(plan_pass.then_some(needed))
    }

    /// The value of an enumerator, where the version has it.
    pub(crate) fn value(&self, enumeration: &str, name: &str) -> Option<u64> {
        self.layouts.enum_value(enumeration, name).and_then(|value| u64::try_from(value).ok())
    }
}
