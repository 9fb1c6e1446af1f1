//! What an operator should look at, and what to do: decided from a sample and the statistics of a while before, so that
//! what was counted long ago is no warning for ever. Alert rules say the same of longer times.

use serde_json::{Value, json};
use slackwater_wire::QuotaState;

/// Puts of which fewer than this share may be refused, or wait for space.
const REFUSED_SHARE: f64 = 0.05;
const WAITED_SHARE: f64 = 0.2;
/// Reads from SSD take more than this many times as long beside writes.
const SLOWDOWN: f64 = 4.0;
/// A tenant that has used this share of a quota is about to be refused.
const QUOTA_SHARE: f64 = 0.95;
/// Warnings of quotas that name their tenants; of more there is one that counts them.
const QUOTAS_NAMED_MAX: usize = 20;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Severity {
    /// Something is lost, or nothing is served.
    Critical,
    /// It works, and less well than it could.
    Warning,
    /// It passes, or is as it was configured.
    Note,
}

/// One thing to look at.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Warning {
    pub(crate) severity: Severity,
    pub(crate) what: String,
    pub(crate) action: &'static str,
}

impl Warning {
    pub(crate) fn json(&self) -> Value {
        let severity = match self.severity {
            Severity::Critical => "critical",
            Severity::Warning => "warning",
            Severity::Note => "note",
        };
        json!({ "severity": severity, "what": self.what, "action": self.action })
    }
}

/// What a sample and the quotas of all tenants say, beside the statistics of a while before; the worst first.
pub(crate) fn warnings(before: Option<&Value>, now: &Value, quotas: &[QuotaState]) -> Vec<Warning> {
    let mut found = Vec::new();
    standing(now, &mut found);
    nodes(now, &mut found);
    tenants(quotas, &mut found);
    if let Some(before) = before {
        lately(before, now, &mut found);
    }
    for text in array(&now["stats"]["warnings"]) {
        let what = text.as_str().unwrap_or_default().to_owned();
        let action = "The configuration says so: `slackwater config --explain` names where each value comes from.";
        found.push(warning(Severity::Note, what, action));
    }
    found.sort_by_key(|warning| warning.severity as u8);
    found
}

/// What is wrong for as long as it stands.
fn standing(now: &Value, found: &mut Vec<Warning>) {
    let stats = &now["stats"];
    if let Some(why) = now["not_ready"].as_str() {
        let action = "Clients wait or miss until this is over.";
        found.push(warning(
            Severity::Critical,
            format!("not serving: {why}"),
            action,
        ));
    }
    if count(stats, "/corrupt") > 0 {
        let what = format!("{} replicas had wrong bytes", count(stats, "/corrupt"));
        let action = "None was returned to a reader. Check the memory and the SSD of the machine: the log names the tier and the keys.";
        found.push(warning(Severity::Critical, what, action));
    }
    if stats["ssd"]["accepting"] == false {
        let action = "It is full or failing. Look at the space and the health of the device; what is in memory is served meanwhile.";
        found.push(warning(
            Severity::Warning,
            "the SSD takes no records".to_owned(),
            action,
        ));
    }
    let slowdown = stats["ssd"]["read_slowdown"].as_f64().unwrap_or(0.0);
    if slowdown > SLOWDOWN {
        let what = format!("reads from SSD take {slowdown:.1} times as long beside writes");
        let action = "The device is near its limit: offload = on-evict writes less, a second device reads more.";
        found.push(warning(Severity::Warning, what, action));
    }
    let late = count(stats, "/views/late");
    if late > 0 {
        let what = format!("{late} views are open for longer than they may be");
        let action = "New views are refused until they end: look for a caller that keeps one.";
        found.push(warning(Severity::Warning, what, action));
    }
    let failed = array(&now["jobs"]).filter(|job| job["status"] == "FAILED");
    for job in failed {
        let what = format!(
            "job {} has failed in part",
            job["job_id"].as_str().unwrap_or_default()
        );
        let action =
            "Its errors stand with it below. Begin it again once what they name is mended.";
        found.push(warning(Severity::Note, what, action));
    }
}

fn nodes(now: &Value, found: &mut Vec<Warning>) {
    let nodes = &now["stats"]["nodes"];
    for node in array(&nodes["nodes"]) {
        let number = count(node, "/node");
        match node["presence"].as_str() {
            Some("away") => {
                let what = format!("node {number} has lost its link a moment ago");
                let action = "Reads of what it holds wait for it.";
                found.push(warning(Severity::Warning, what, action));
            }
            Some("hidden") => {
                let what = format!("node {number} has no link");
                let action = "Reads of what it holds miss. See whether its machine and `slackwater node` there run, and the log of both.";
                found.push(warning(Severity::Warning, what, action));
            }
            _ => {}
        }
    }
    if nodes["partial"] == true {
        let what = "nodes have yet to say what they hold".to_owned();
        let action = "What is not found may be there. It passes once every node that was known is back, or after ten minutes.";
        found.push(warning(Severity::Note, what, action));
    }
}

fn tenants(quotas: &[QuotaState], found: &mut Vec<Warning>) {
    let action = "Its puts replace its own objects or are refused: raise the quota, or remove what it does not need.";
    let tiers = quotas.iter().flat_map(|quota| {
        let memory = ("memory", quota.memory_quota, quota.memory_bytes);
        [memory, ("SSD", quota.disk_quota, quota.disk_bytes)].map(|tier| (&quota.tenant, tier))
    });
    let mut used_up = tiers.filter(|(_, (_, limit, used))| {
        limit.is_some_and(|limit| *used > 0 && *used as f64 >= QUOTA_SHARE * limit as f64)
    });
    for (tenant, (tier, ..)) in used_up.by_ref().take(QUOTAS_NAMED_MAX) {
        let what = format!("tenant {} has used its quota of {tier}", tenant.name());
        found.push(warning(Severity::Warning, what, action));
    }
    let more = used_up.count();
    if more > 0 {
        let what = format!("quotas beside these that are used: {more}");
        let action = "`/api/v1/tenant_quotas` lists all tenants.";
        found.push(warning(Severity::Warning, what, action));
    }
}

/// What went wrong since these statistics.
fn lately(before: &Value, now: &Value, found: &mut Vec<Warning>) {
    let grown = |path: &str| {
        let now = count(&now["stats"], path);
        now.saturating_sub(count(before, path)) as f64
    };
    let [stored, existed, refused] = ["/puts/stored", "/puts/existed", "/puts/refused"].map(grown);
    let puts = stored + existed + refused;
    if refused > REFUSED_SHARE * puts {
        let what = format!("{:.0} % of puts are refused", 100.0 * refused / puts);
        let action = "Memory fills faster than it is evicted: more memory, a lower evict.high, or fewer pins and open views.";
        found.push(warning(Severity::Warning, what, action));
    }
    if grown("/puts/waited") > WAITED_SHARE * puts {
        let action = "Eviction begins too late or the SSD is too slow to take what leaves: lower evict.high and evict.low, or offload = on-evict.";
        let what = "more than one put of five waits for space".to_owned();
        found.push(warning(Severity::Warning, what, action));
    }
    let failed = grown("/offloads/failed") + grown("/offloads/expired");
    if failed > 0.0 {
        let what = format!("{failed:.0} writes to SSD have failed lately");
        found.push(warning(
            Severity::Warning,
            what,
            "The log names the device's error.",
        ));
    }
    if grown("/nodes/given_up") > 0.0 {
        let what = "a node that had no link for long was given up".to_owned();
        let action =
            "What it held in memory is lost to the pool; what is on its SSD returns with it.";
        found.push(warning(Severity::Warning, what, action));
    }
}

fn warning(severity: Severity, what: String, action: &'static str) -> Warning {
    Warning {
        severity,
        what,
        action,
    }
}

fn count(value: &Value, path: &str) -> u64 {
    value.pointer(path).and_then(Value::as_u64).unwrap_or(0)
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thing_to_look_at_is_said_and_nothing_else() {
        let check = |before: Value, now: Value, expected: &[(Severity, &str)]| {
            let found = warnings(Some(&before), &now, &[]);
            let said = || found.iter().map(|it| (it.severity, it.what.as_str()));
            assert_eq!(found.len(), expected.len(), "{found:?}");
            for ((severity, part), (got, what)) in expected.iter().zip(said()) {
                assert!(
                    *severity == got && what.contains(part),
                    "{what} is not {part}"
                );
            }
            assert!(found.iter().all(|it| !it.action.is_empty()));
        };
        use Severity::{Critical, Note, Warning};
        let none = || json!({});
        let alone = |now: Value, severity, part: &str| check(none(), now, &[(severity, part)]);
        let stats = |stats: Value| json!({ "stats": stats });
        check(none(), none(), &[]);
        alone(
            json!({ "not_ready": "no node" }),
            Critical,
            "not serving: no node",
        );
        alone(stats(json!({ "corrupt": 2 })), Critical, "2 replicas");
        alone(
            stats(json!({ "ssd": { "accepting": false } })),
            Warning,
            "takes no records",
        );
        check(
            none(),
            stats(json!({ "ssd": { "accepting": true, "read_slowdown": 4.0 } })),
            &[],
        );
        alone(
            stats(json!({ "ssd": { "read_slowdown": 4.1 } })),
            Warning,
            "4.1 times",
        );
        check(
            none(),
            stats(json!({ "ssd": null, "views": { "late": 0 } })),
            &[],
        );
        alone(stats(json!({ "views": { "late": 1 } })), Warning, "1 views");
        alone(
            stats(json!({ "warnings": ["x has no effect"] })),
            Note,
            "x has no effect",
        );
        let failed =
            json!({ "jobs": [{ "job_id": "7", "status": "FAILED" }, { "status": "SUCCEEDED" }] });
        alone(failed, Note, "job 7");
        let node = |number: u32, presence: &str| json!({ "node": number, "presence": presence });
        let nodes = [node(1, "here"), node(2, "away"), node(3, "hidden")];
        let pool = stats(json!({ "nodes": { "nodes": nodes, "partial": true } }));
        let expected = [
            (Warning, "node 2 has lost"),
            (Warning, "node 3 has no link"),
            (Note, "yet to say"),
        ];
        check(none(), pool, &expected);
        let both = json!({
            "jobs": [{ "job_id": "7", "status": "FAILED" }],
            "stats": { "nodes": { "nodes": [node(3, "hidden")] } },
        });
        check(none(), both, &[(Warning, "node 3"), (Note, "job 7")]);
    }

    #[test]
    fn a_quota_that_is_used_is_said() {
        let quota = |memory_quota, disk_quota, used| QuotaState {
            tenant: slackwater_wire::Tenant::new("t").unwrap(),
            memory_quota,
            disk_quota,
            memory_bytes: used,
            disk_bytes: used,
            objects: 1,
        };
        let check = |quotas: &[QuotaState], expected: &[&str]| {
            let found = warnings(None, &json!({}), quotas);
            let said: Vec<&str> = found.iter().map(|it| it.what.as_str()).collect();
            assert_eq!(said, expected);
        };
        let memory = "tenant t has used its quota of memory";
        check(&[quota(Some(100), None, 95)], &[memory]);
        check(
            &[quota(None, Some(100), 95)],
            &["tenant t has used its quota of SSD"],
        );
        check(&[quota(Some(100), Some(100), 94)], &[]);
        check(&[quota(None, None, 94)], &[]);
        check(&[quota(Some(0), Some(0), 0)], &[]);
        let mut many = vec![memory; QUOTAS_NAMED_MAX];
        let quotas = vec![quota(Some(100), None, 95); QUOTAS_NAMED_MAX + 3];
        check(&quotas[3..], &many);
        many.push("quotas beside these that are used: 3");
        check(&quotas, &many);
    }

    #[test]
    fn what_was_counted_before_is_no_warning_for_ever() {
        let puts = |stored: u64, refused: u64, waited: u64| json!({ "stats": { "puts": { "stored": stored, "refused": refused, "waited": waited } } });
        let check = |before: &Value, now: &Value, expected: usize| {
            let found = warnings(Some(&before["stats"]), now, &[]);
            assert_eq!(found.len(), expected, "{before} {now}: {found:?}");
        };
        check(&puts(100, 50, 50), &puts(200, 50, 50), 0);
        check(&puts(100, 50, 50), &puts(119, 51, 50), 0);
        check(&puts(100, 50, 50), &puts(118, 51, 50), 1);
        check(&puts(100, 0, 0), &puts(110, 0, 2), 0);
        check(&puts(100, 0, 0), &puts(110, 0, 3), 1);
        // The store was started again.
        check(&puts(100, 50, 50), &puts(1, 0, 0), 0);
        assert!(warnings(None, &puts(0, 50, 50), &[]).is_empty());
        let later = |group: &str, field: &str| json!({ "stats": { group: { field: 1 } } });
        check(&json!({}), &later("offloads", "failed"), 1);
        check(&json!({}), &later("offloads", "expired"), 1);
        check(&json!({}), &later("nodes", "given_up"), 1);
        let stays = later("nodes", "given_up");
        check(&stays, &stays, 0);
    }
}
