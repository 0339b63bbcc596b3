#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    loosekv_engine::fuzz::target("page_file").expect("a target of this name")(bytes)
});
