#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| slackwater_fuzz::zmtp::greeting(bytes));
