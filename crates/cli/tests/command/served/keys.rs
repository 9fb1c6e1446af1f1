//! Who may do what, where links have keys.

use slackwater_remote::{CallOptions, GetOptions, PeerStats, PutOptions};
use slackwater_wire::{PutMode, Tenant};

use super::admin::Administered;
use super::pool::Node;
use super::*;

fn keyed(place: &Place) -> Served {
    make_key(place, "server", "");
    make_key(place, "anna", "basic tenants=acme");
    make_key(place, "bert", "basic tenants=globex");
    make_key(place, "root", "admin");
    make_key(place, "mallory", "");
    let more = ["--memory", "64MiB", "--tenants", "true"];
    let served = Served::start(place, &[&KEYED, &more[..]].concat());
    assert!(served.address.starts_with("curve://"), "{}", served.address);
    served
}

#[test]
fn a_key_reaches_the_objects_of_its_tenants_and_no_others() {
    let place = Place::new();
    let served = keyed(&place);
    let run = |who: &str, arguments: &[&str], input: &[u8]| {
        let who = ["--key-file", who];
        served.run(&place, &[arguments, &who[..]].concat(), input)
    };
    let operator = connect_with_key(&served.address, place.path("root"), PATIENCE).unwrap();
    for tenant in ["acme", "globex"] {
        let of = CallOptions {
            tenant: Tenant::new(tenant).unwrap(),
            ..CallOptions::default()
        };
        assert_eq!(operator.set_quota(16 << 20, 0, &of), Ok(()));
    }
    let value = value(7, 3_000_000);
    let put = run("anna", &["put", "k", "-", "--tenant", "acme"], &value);
    assert!(put.status.success(), "{}", stderr(&put));
    let got = run("anna", &["get", "k", "--tenant", "acme"], b"");
    assert!(got.stdout == value, "{}", stderr(&got));
    assert!(run("root", &["get", "k", "--tenant", "acme"], b"").stdout == value);
    let check = |who: &str, arguments: &[&str], expected: &str| {
        let output = run(who, arguments, b"x");
        let told = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{who} {arguments:?}");
        assert!(
            output.stdout.is_empty() && told.contains(expected),
            "{who} {arguments:?}: {told}"
        );
    };
    for key in ["k", "none"] {
        check(
            "bert",
            &["get", key, "--tenant", "acme"],
            "TENANT_NOT_PERMITTED",
        );
        check(
            "bert",
            &["stat", key, "--tenant", "acme"],
            "TENANT_NOT_PERMITTED",
        );
        check(
            "bert",
            &["rm", key, "--force", "--tenant", "acme"],
            "TENANT_NOT_PERMITTED",
        );
        check(
            "bert",
            &["put", key, "-", "--tenant", "acme"],
            "TENANT_NOT_PERMITTED",
        );
    }
    check("bert", &["ls", "--tenant", "acme"], "TENANT_NOT_PERMITTED");
    check(
        "bert",
        &["get", "k", "--tenant", "globex"],
        "there is no object",
    );
    check(
        "mallory",
        &["get", "k", "--tenant", "acme"],
        "and ours in its allow-list",
    );
}

#[test]
fn a_wrong_or_missing_key_is_refused() {
    let place = Place::new();
    let served = keyed(&place);
    let told = |arguments: &[&str]| {
        let output = feed(place.command(arguments), b"");
        assert_eq!(output.status.code(), Some(1));
        stderr(&output)
    };
    let without = told(&["get", "k", "--connect", &served.address]);
    assert!(without.contains("needs a key of ours"), "{without}");
    let (place_of, _) = served.address.rsplit_once('/').unwrap();
    let other = format!("{place_of}/{}", "5".repeat(64));
    let wrong = told(&["get", "k", "--connect", &other, "--key-file", "anna"]);
    assert!(
        wrong.contains("the key in the address must be its own"),
        "{wrong}"
    );
    let plain = place_of.replace("curve://", "tcp://");
    let told = told(&["get", "k", "--connect", &plain]);
    assert!(
        told.contains("one with keys is reached by the curve:// address"),
        "{told}"
    );
}

/// The link of a client named itself by its key, so a second process with the key took over from the first: what the first
/// asked was not answered until its deadline.
#[test]
fn processes_that_share_a_key_do_not_disturb_one_another() {
    let place = Place::new();
    let served = keyed(&place);
    let deadline = Duration::from_secs(10);
    let connect = || connect_with_key(&served.address, place.path("root"), deadline).unwrap();
    let asks = |client: &Client| {
        let found = client.stat(b"k", &CallOptions::default()).unwrap();
        assert_eq!(found.map(|found| found.bytes), Some(100_000));
    };
    let first = connect();
    let value = value(3, 100_000);
    first.put(b"k", &value, &PutOptions::default()).unwrap();
    for _ in 0..3 {
        let other = connect();
        asks(&other);
        asks(&first);
        let got = other.get(b"k", &GetOptions::default()).unwrap();
        assert_eq!(got.as_deref(), Some(&value[..]));
        drop(other);
        asks(&first);
    }
}

/// A client that named its key, and an address without the server's, was connected without any encryption.
#[test]
fn a_key_file_is_not_left_aside() {
    let place = Place::new();
    make_key(&place, "anna", "");
    let served = Served::start(&place, &["--memory", "64MiB"]);
    let get = ["get", "k", "--key-file", "anna"];
    let output = served.run(&place, &get, b"");
    let told = stderr(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(told.contains("nothing would be encrypted"), "{told}");
}

/// A store that does not tell tenants apart took every name for the default tenant's: a key of one tenant would have
/// read what a key of another one had put.
#[test]
fn a_key_of_a_tenant_has_no_objects_where_tenants_are_not_told_apart() {
    let place = Place::new();
    make_key(&place, "server", "");
    make_key(&place, "anna", "basic tenants=acme");
    make_key(&place, "carl", "basic");
    let served = Served::start(&place, &[&KEYED, &["--memory", "64MiB"][..]].concat());
    let run = |arguments: &[&str]| stderr(&served.run(&place, arguments, b"x"));
    assert_eq!(run(&["put", "k", "-", "--key-file", "carl"]), "");
    for tenant in ["acme", ""] {
        let told = run(&["get", "k", "--key-file", "anna", "--tenant", tenant]);
        assert!(told.contains("TENANT_NOT_PERMITTED"), "{told}");
    }
}

#[test]
fn the_list_is_read_again_when_the_server_is_told() {
    let place = Place::new();
    make_key(&place, "server", "");
    make_key(&place, "anna", "basic");
    let served = Served::start(&place, &[&KEYED, &["--memory", "64MiB"][..]].concat());
    // Who is not let in waits for all of its time.
    let put = |who: &str| {
        let time = if who == "anna" { "100s" } else { "1s" };
        let put = ["put", "k", "-", "--upsert", "--key-file", who];
        let put = [&put[..], &["--timeout", time]].concat();
        served.run(&place, &put, b"x").status.success()
    };
    assert!(put("anna"));
    let list = std::fs::read_to_string(place.path("list")).unwrap();
    make_key(&place, "carl", "basic");
    assert!(!put("carl"));
    served.signal(Signal::HUP);
    until("the new key is let in", || put("carl"));
    let deadline = Duration::from_millis(500);
    let held = connect_with_key(&served.address, place.path("carl"), deadline).unwrap();
    let ask = || held.exists(&[b"k"], &CallOptions::default());
    until("the new key is served", || ask() == Ok(vec![true]));
    std::fs::write(place.path("list"), list).unwrap();
    served.signal(Signal::HUP);
    // A machine that is busy gives no answer in time either.
    until("the removed key is let in no more", || !put("carl"));
    until("the link of the removed key has ended", || ask().is_err());
    assert!(!put("carl") && put("anna"));
}

/// The ways that the values of a client went that puts one of a MiB and reads it.
fn ways(address: &str, key_file: PathBuf) -> Vec<&'static str> {
    let client = connect_with_key(address, key_file, Duration::from_secs(20)).unwrap();
    let value = value(5, 1 << 20);
    let upsert = PutOptions {
        mode: PutMode::Upsert,
        ..PutOptions::default()
    };
    let mut into = vec![0; value.len()];
    let put = client.put(b"large", &value, &upsert);
    let got = client.get_into(b"large", &mut into, &GetOptions::default());
    // The list may be read again between the two.
    if put.is_err() || got != Ok(Some(value.len())) {
        return Vec::new();
    }
    assert!(into == value);
    let moved = client.moved();
    let all = value.len() as u64;
    let whole = |(_, it): &&(_, PeerStats)| it.bytes_read == all && it.bytes_written == all;
    moved.iter().filter(whole).map(|(way, _)| *way).collect()
}

/// Two processes of one machine with keys went by TCP, and sealed what shared memory would have held.
#[test]
fn a_key_that_may_map_memory_reads_it_and_others_are_sent_the_bytes() {
    let place = Place::new();
    make_key(&place, "server", "");
    let anna = make_key(&place, "anna", "");
    let allow = ["keys", "allow", "list", &anna, "--map-memory"];
    assert!(place.run(&allow).status.success());
    make_key(&place, "carl", "basic");
    make_key(&place, "root", "admin");
    let served = Served::start(&place, &[&KEYED, &["--memory", "64MiB"][..]].concat());
    let ways = |who| ways(&served.address, place.path(who));
    assert_eq!([ways("anna"), ways("root")], [["host"], ["host"]]);
    assert_eq!(ways("carl"), ["tcp"]);
    let list = std::fs::read_to_string(place.path("list")).unwrap();
    std::fs::write(place.path("list"), list.replace(" memory=mapped", "")).unwrap();
    served.signal(Signal::HUP);
    until("the list is read again", || ways("anna") == ["tcp"]);
    assert_eq!(ways("root"), ["host"]);
}

#[test]
fn nodes_share_their_memory_with_the_keys_of_their_own_list() {
    let place = Place::new();
    make_key(&place, "server", "");
    make_key(&place, "anna", "basic");
    let list = std::fs::read_to_string(place.path("list")).unwrap();
    let mapped = list.replace(" basic ", " basic memory=mapped ");
    std::fs::write(place.path("clients"), mapped).unwrap();
    make_key(&place, "one", "node");
    let server = Administered::spawn(&place, &[&["master"], &KEYED[..]].concat());
    let sizes = [
        "--memory",
        "32MiB",
        "--key-file",
        "one",
        "--allow",
        "clients",
    ];
    let _node = Node::start(&place, &server.served.address, &sizes);
    assert_eq!(ways(&server.served.address, place.path("anna")), ["host"]);
}

/// The two ends of a cable, each in a network of its own, made without any right of the machine.
const TWO_NETWORKS: &str = r#"
set -eu
unshare --net sleep 300 & other=$!
trap 'kill $other $server 2>/dev/null || true' EXIT
server=$other
until [ "$(readlink /proc/$other/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
ip link set lo up
ip link add here type veth peer name there
ip link set there netns $other
ip address add 10.213.0.1/24 dev here
ip link set here up
nsenter --target $other --net ip address add 10.213.0.2/24 dev there
nsenter --target $other --net ip link set there up
"$SLACKWATER" serve --memory 64MiB --log warn --listen 10.213.0.1:50051 --key-file server --allow list > said & server=$!
until grep -q 'serving at' said; do kill -0 $server; sleep 0.05; done
address=$(sed -n 's/serving at //p' said)
on_the_other() { nsenter --target $other --net "$SLACKWATER" "$@" --connect "$address" --key-file anna; }
on_the_other put k value
on_the_other get k > back
cmp value back
on_the_other stat k --json
"#;

#[test]
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
fn a_client_in_another_network_uses_a_keyed_store() {
    let place = Place::new();
    make_key(&place, "server", "");
    make_key(&place, "anna", "basic");
    std::fs::write(place.path("value"), value(3, 5_000_000)).unwrap();
    let allowed = Command::new("unshare")
        .args([
            "--user",
            "--map-root-user",
            "--net",
            "ip",
            "link",
            "add",
            "one",
            "type",
            "veth",
        ])
        .stderr(Stdio::null())
        .status();
    if !allowed.is_ok_and(|status| status.success()) {
        // The same over loopback is `a_key_reaches_the_objects_of_its_tenants_and_no_others`, over loopback.
        eprintln!("skipped: this machine allows no networks of one's own (unshare --net, ip)");
        return;
    }
    let mut command = Command::new("unshare");
    command
        .args([
            "--user",
            "--map-root-user",
            "--net",
            "sh",
            "-c",
            TWO_NETWORKS,
        ])
        .current_dir(place.path(""))
        .env("SLACKWATER", env!("CARGO_BIN_EXE_slackwater"));
    let output = feed(command, b"");
    let told = stderr(&output);
    assert!(output.status.success(), "{told}");
    let stat = String::from_utf8(output.stdout).unwrap();
    assert!(stat.contains(r#""bytes":5000000"#), "{stat}");
}
