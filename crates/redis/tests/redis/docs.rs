//! `docs/redis.md` lists exactly the commands of the table.

use pluvio_redis::SPECS;

#[test]
fn the_page_lists_every_command() {
    let page = std::fs::read_to_string("../../docs/redis.md").unwrap();
    let start = page
        .find("<!-- commands -->")
        .expect("the table begins with a mark");
    let end = page
        .find("<!-- /commands -->")
        .expect("the table ends with a mark");
    let mut expected = String::from("<!-- commands -->\n| command | what it does |\n|---|---|\n");
    for spec in SPECS {
        let name = spec.name.to_uppercase().replace('|', " ");
        expected += &format!("| {name} | {} |\n", spec.summary);
    }
    let table = &page[start..end];
    assert!(
        table == expected,
        "the table of docs/redis.md should be:\n{expected}"
    );
}
