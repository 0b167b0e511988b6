//! Reads any bytes as a configuration, in every format. A configuration that was read is equal after writing and
//! reading it again. The bytes are also read as a list of pods, and as a command line of damo's.
#![no_main]

use isotherm_config::damo::translate;
use isotherm_config::{
    ConfigFormat, Topology, load, plain, read_pods, scheme_line, text_of, to_json, to_yaml,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = read_pods(bytes);
    let Ok(text) = text_of(bytes) else { return };
    for format in [ConfigFormat::Json, ConfigFormat::Yaml, ConfigFormat::Damos] {
        if let Ok(read) = load(text, format) {
            let json = load(&to_json(&read), ConfigFormat::Json).expect("our JSON is readable");
            assert_eq!(json.contexts, read.contexts);
            let yaml = load(&to_yaml(&read), ConfigFormat::Yaml).expect("our YAML is readable");
            assert_eq!(yaml.contexts, read.contexts);
        }
    }
    let _ = Topology::read(text);
    let _ = plain(text);
    let _ = scheme_line(text);
    let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    let _ = translate(&words, false);
});
