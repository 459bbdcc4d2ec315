//! Reading the file: a dump is raw bytes, and people have other files of flashes that look like dumps.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, bail};

/// No device that Pillarbox runs on has so much flash.
const BYTES_MAX: u64 = 256 << 20;

/// The bytes of a dump.
pub(super) fn load(path: &Path) -> anyhow::Result<Vec<u8>> {
    let name = path.display();
    let unread = || format!("the dump {name} cannot be read");
    let file = std::fs::File::open(path).with_context(unread)?;
    let mut bytes = Vec::new();
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes).with_context(unread)?;
    if bytes.len() as u64 > BYTES_MAX {
        bail!(
            "{name} is larger than {} MiB, which no dump of a device's flash is. Cut the outbox region out of it",
            BYTES_MAX >> 20
        );
    }
    if bytes.is_empty() {
        bail!("{name} is empty");
    }
    if let Some(other) = other_format(&bytes) {
        bail!("{name} is {}, not a raw dump. {}", other.name, other.advice);
    }
    Ok(bytes)
}

/// A file that holds what a flash holds, in another form.
struct Other {
    name: &'static str,
    advice: &'static str,
}

fn other_format(bytes: &[u8]) -> Option<Other> {
    let is_hex_line = |prefix: &[u8], digits: usize| {
        let rest = bytes.strip_prefix(prefix).and_then(|rest| rest.get(..digits));
        rest.is_some_and(|rest| rest.iter().all(u8::is_ascii_hexdigit))
    };
    let other = |name, advice| Some(Other { name, advice });
    if is_hex_line(b":", 10) {
        return other("an Intel HEX file", "Convert it with `objcopy -I ihex -O binary IN OUT`");
    }
    if [b'0', b'1', b'2', b'3'].iter().any(|kind| is_hex_line(&[b'S', *kind], 8)) {
        return other("a Motorola S-record file", "Convert it with `objcopy -I srec -O binary IN OUT`");
    }
    if bytes.starts_with(b"\x7fELF") {
        return other(
            "an ELF file, such as a firmware",
            "Read the flash out of the device: `probe-rs read b8`",
        );
    }
    if bytes.starts_with(b"UF2\n") {
        return other(
            "a UF2 file",
            "Read the flash out of the device: `picotool save -a OUT.bin`, or `probe-rs read b8`",
        );
    }
    None
}
