//! Text that comes from the target and goes to files and terminals: only printable characters are kept.

use std::str;

use nccl_library::nccl::{Name, NameTables};

/// Returns the printable bytes of a C string.
fn printable(bytes: &[u8]) -> impl Iterator<Item = u8> {
    bytes.iter().copied().take_while(|byte| *byte != 0).filter(u8::is_ascii_graphic)
}

/// Returns the name of a function of the API. All uses of a name that the library's enum has share its text.
pub(super) fn function_name(names: &NameTables, bytes: &[u8]) -> Name {
    let c_string = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    match str::from_utf8(c_string) {
        Ok(text) if text.bytes().all(|byte| byte.is_ascii_graphic()) => names.function_named(text),
        _ => Name::from(printable(bytes).map(char::from).collect::<String>().as_str()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_known_or_kept_as_it_can_be_printed() {
        let names = NameTables::default();
        assert_eq!(function_name(&names, b"AllReduce\0x"), "AllReduce");
        assert_eq!(function_name(&names, b"All\x1bRed\xc3uce\0"), "AllReduce");
        assert_eq!(function_name(&names, b""), "");
    }
}
