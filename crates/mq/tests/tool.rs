//! The functions of the command line, run against each other.

mod common;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc::{Sender, channel};

use common::*;
use slackwater_mq::tool::{self, Echo, Feed, Target, ToolError};
use slackwater_mq::*;

/// A sink that hands on every line.
struct Lines(Sender<String>, String);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.1.push_str(&String::from_utf8_lossy(bytes));
        while let Some((line, rest)) = self.1.split_once('\n') {
            let _ = self.0.send(line.to_owned());
            self.1 = rest.to_owned();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn keys_are_made_shown_and_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let (key, list) = (folder.path().join("key"), folder.path().join("allowed"));
    let mut out = Vec::new();
    let public = tool::keys_new(&key, &mut out).unwrap();
    assert_eq!(
        std::fs::metadata(&key).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let text = String::from_utf8(out).unwrap();
    assert_eq!(
        text,
        format!(
            "hex      {public}\nbase32z  {}\nz85      {}\nprint    {}\n",
            public.to_base32z(),
            public.to_z85(),
            public.fingerprint()
        )
    );
    assert_eq!(tool::keys_show(&key, &mut Vec::new()).unwrap(), public);
    assert!(
        matches!(
            tool::keys_new(&key, &mut Vec::new()),
            Err(ToolError::KeyFile(_))
        ),
        "no key is overwritten"
    );

    let other = keys(9).public();
    tool::keys_allow(&list, &public.to_z85(), "basic", "me", &mut Vec::new()).unwrap();
    tool::keys_allow(&list, &other.to_string(), "admin", "", &mut Vec::new()).unwrap();
    tool::keys_allow(
        &list,
        &public.to_string(),
        "admin",
        "me again",
        &mut Vec::new(),
    )
    .unwrap();
    let allowed = AllowList::load(&list).unwrap();
    assert_eq!(allowed.len(), 2);
    assert_eq!(
        allowed.find(&public),
        Some(Allowed {
            tenants: Vec::new(),
            level: Level::Admin,
            maps: false,
            name: "me again".into()
        })
    );
    assert!(matches!(
        tool::keys_allow(&list, "abc", "basic", "", &mut Vec::new()),
        Err(ToolError::KeyText(_))
    ));
    assert!(matches!(
        tool::keys_allow(&list, &public.to_string(), "root", "", &mut Vec::new()),
        Err(ToolError::Level(_))
    ));
}

#[test]
fn an_echo_server_answers_who_is_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    tool::keys_new(&path("server"), &mut Vec::new()).unwrap();
    let client = tool::keys_new(&path("client"), &mut Vec::new()).unwrap();
    tool::keys_allow(
        &path("allowed"),
        &client.to_string(),
        "basic",
        "",
        &mut Vec::new(),
    )
    .unwrap();
    let options = Echo {
        endpoint: any_port(),
        key_file: Some(path("server")),
        allow_list: Some(path("allowed")),
    };
    let (said, lines) = channel();
    let (stopper, feed) = Feed::new();
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let feed = feed;
            tool::echo(&options, &feed, &mut Lines(said, String::new()))
        });
        let address: Address = next(&lines, "the address")
            .strip_prefix("listening at ")
            .unwrap()
            .parse()
            .unwrap();
        let target = |key: Option<&str>| Target {
            address: address.clone(),
            key_file: key.map(path),
            timeout: LONG,
            raw: false,
        };
        let mut out = Vec::new();
        tool::request(
            &target(Some("client")),
            "echo.echo",
            &[b"a".to_vec(), b"\xff".to_vec()],
            &mut out,
        )
        .unwrap();
        assert!(
            String::from_utf8(out)
                .unwrap()
                .starts_with("a\n\\xff\n(2 parts in ")
        );
        tool::send(
            &target(Some("client")),
            "echo.say",
            &[b"hello".to_vec()],
            &mut Vec::new(),
        )
        .unwrap();
        assert_eq!(next(&lines, "what was said"), "127.0.0.1: hello");
        let unknown =
            tool::request(&target(Some("client")), "no.such", &[], &mut Vec::new()).unwrap_err();
        assert_eq!(unknown.to_string(), "the peer answered: UNKNOWNCOMMAND");
        let refused = tool::request(&target(None), "echo.echo", &[], &mut Vec::new()).unwrap_err();
        assert!(
            refused.to_string().ends_with("refused by the peer: 400"),
            "{refused}"
        );
        stopper.stop();
        serving.join().unwrap().unwrap();
    });
}

#[test]
fn a_stream_is_printed_with_its_numbers() {
    let server = client(1);
    let publisher = server
        .publish(
            &any_port(),
            None,
            &everybody(false),
            &StreamOptions::default(),
        )
        .unwrap();
    let target = Target {
        address: Address::of(publisher.endpoint(), None),
        key_file: None,
        timeout: LONG,
        raw: false,
    };
    let (said, lines) = channel();
    std::thread::scope(|scope| {
        let topics = [b"kv".to_vec()];
        scope.spawn(move || {
            tool::sub(
                &target,
                &topics,
                Some(3),
                &Feed::new().1,
                &mut Lines(said, String::new()),
            )
            .unwrap()
        });
        let mut heard = Vec::new();
        while heard.len() < 3 {
            publisher.publish(b"kv", b"body");
            heard.extend(lines.recv_timeout(std::time::Duration::from_millis(5)));
        }
        assert!(
            heard.iter().all(|line| line.ends_with(" kv body")),
            "{heard:?}"
        );
    });
}
