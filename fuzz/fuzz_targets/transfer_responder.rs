#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| slackwater_fuzz::transfer::responder(bytes));
