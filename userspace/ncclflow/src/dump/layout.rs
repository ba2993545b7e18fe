//! Where the fields are that a dump reads, in the layout of one library.

use std::fmt;

use nccl_library::{
    layouts::{Field, Layouts},
    symbols::Request,
};

/// Structs and enumerations that a dump needs; no functions.
pub(crate) fn request() -> Request {
    const STRUCTS: [&str; 16] = [
        "ncclComm",
        "ncclChannel",
        "ncclChannelPeer",
        "ncclConnector",
        "ncclProxyConnector",
        "ncclProxyConnection",
        "ncclProxyState",
        "ncclProxyProgressState",
        "ncclProxyArgs",
        "ncclProxySubArgs",
        "ncclSharedResources",
        "ncclConfig_t",
        "ncclSendMem",
        "ncclRecvMem",
        "sendNetResources",
        "recvNetResources",
    ];
    const ENUMS: [&str; 6] =
        ["ncclFunc_t", "ncclPattern_t", "ncclResult_t", "ncclProxyOpState", "ncclDataType_t", "ncclRedOp_t"];
    Request {
        functions: Vec::new(),
        structs: STRUCTS.iter().map(|name| (*name).to_owned()).collect(),
        enums: ENUMS.iter().map(|name| (*name).to_owned()).collect(),
    }
}

/// A field without which a dump cannot be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing(pub String);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the layout of `{}` is not known", self.0)
    }
}

impl std::error::Error for Missing {}

/// A little-endian integer or pointer in a struct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) offset: u64,
    /// 1, 2, 4 or 8 bytes.
    pub(crate) size: usize,
}

impl Place {
    fn of(field: &Field) -> Option<Self> {
        let size = usize::try_from(field.size).ok().filter(|size| matches!(size, 1 | 2 | 4 | 8))?;
        Some(Self { offset: field.offset, size })
    }

    /// The value in a copy of the struct that begins at byte `from` of it.
    pub(crate) fn unsigned(self, copy: &[u8], from: u64) -> Option<u64> {
        let start = usize::try_from(self.offset.checked_sub(from)?).ok()?;
        number(copy.get(start..start.checked_add(self.size)?)?)
    }

    /// The same with the sign of an `int`.
    pub(crate) fn signed(self, copy: &[u8], from: u64) -> Option<i64> {
        let value = self.unsigned(copy, from)?;
        let unused = 64 - 8 * u32::try_from(self.size).ok()?;
        Some((value << unused).cast_signed() >> unused)
    }
}

/// A little-endian number of up to 8 bytes.
pub(crate) fn number(bytes: &[u8]) -> Option<u64> {
    let mut word = [0; 8];
    word.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(u64::from_le_bytes(word))
}

/// Looks up fields of one struct.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'l> {
    pub(crate) layouts: &'l Layouts,
    pub(crate) name: &'static str,
}

impl<'l> Fields<'l> {
    pub(crate) fn of(layouts: &'l Layouts, name: &'static str) -> Self {
        Self { layouts, name }
    }

    pub(crate) fn size(self) -> Result<u64, Missing> {
        self.layouts.struct_size(self.name).ok_or_else(|| Missing(self.name.to_owned()))
    }

    pub(crate) fn field(self, path: &str) -> Option<Field> {
        self.layouts.field(self.name, path)
    }

    /// A number or a pointer, where this version has it.
    pub(crate) fn maybe(self, path: &str) -> Option<Place> {
        Place::of(&self.field(path)?)
    }

    pub(crate) fn place(self, path: &str) -> Result<Place, Missing> {
        self.maybe(path).ok_or_else(|| Missing(format!("{}.{path}", self.name)))
    }

    /// Offset, element count and element size of an array.
    pub(crate) fn array(self, path: &str) -> Result<(u64, u64, u64), Missing> {
        let missing = || Missing(format!("{}.{path}", self.name));
        let field = self.field(path).ok_or_else(missing)?;
        let array = field.array.ok_or_else(missing)?;
        Some((field.offset, array.count, array.elem_size))
            .filter(|(_, _, size)| *size > 0)
            .ok_or_else(missing)
    }
}
