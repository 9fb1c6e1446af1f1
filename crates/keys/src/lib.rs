//! Key files and allow-lists: the key of this side, and the keys of peers that may connect. Messages and transfers read
//! the same files.
#![forbid(unsafe_code)]

mod allow_list;
mod key_file;

pub use allow_list::{AllowList, AllowListError, Allowed, Level};
pub use key_file::{KeyFileError, load_key, new_keys, write_key};
