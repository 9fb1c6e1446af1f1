//! The binary as its users run it: processes, exit codes, output, and what is left behind.

mod kill;
mod place;
mod replay;
