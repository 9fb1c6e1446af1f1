use std::fs;
use std::io;

/// The name of this boot of the kernel, by which processes find out that they are of one host.
///
/// # Errors
/// The kernel does not say.
pub fn boot_id() -> io::Result<String> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(text.trim().to_owned())
}
