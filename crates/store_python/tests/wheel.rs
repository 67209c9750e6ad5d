//! The wheel that maturin builds, in an environment of its own: what is installed is what users
//! get.

#![allow(clippy::unwrap_used)]

mod needs_maturin {
    use std::path::{Path, PathBuf};
    use std::process::Command;

    fn folder() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR"))
    }

    /// The Python that has maturin and mypy.
    fn python() -> PathBuf {
        let python = std::env::var("PLUVIO_TEST_MATURIN");
        python
            .expect("`cargo xtask test` says where maturin is")
            .into()
    }

    /// Runs a command, and gives its output.
    fn run(command: &mut Command) -> String {
        let done = command.output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        let printed = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success(), "{command:?}\n{printed}\n{said}");
        printed.into_owned()
    }

    /// Builds the wheel in this profile's folder, and unpacks it.
    fn install(place: &Path) -> PathBuf {
        let test = std::env::current_exe().unwrap();
        // Below the folder of the build: `test-fast/deps/wheel-…`.
        let target = test.ancestors().nth(3).unwrap();
        let mut build = Command::new(python());
        build.args([
            "-m",
            "maturin",
            "build",
            "--profile",
            "test-fast",
            "--quiet",
            "--locked",
        ]);
        build
            .arg("--target-dir")
            .arg(target)
            .arg("--out")
            .arg(place);
        run(build.current_dir(folder()));
        let mut wheels = std::fs::read_dir(place).unwrap();
        let wheel = wheels.next().unwrap().unwrap().path();
        let name = wheel.file_name().unwrap().to_string_lossy().into_owned();
        assert!(name.contains("-cp311-abi3-"), "{name}");
        let installed = place.join("installed");
        let mut install = Command::new(python());
        install.args(["-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]);
        install.arg("--disable-pip-version-check");
        run(install.arg("--target").arg(&installed).arg(wheel));
        installed
    }

    // shows: PYTHON-1, PYTHON-2
    #[test]
    fn the_wheel_does_what_its_stubs_and_the_page_say() {
        let place = tempfile::tempdir().unwrap();
        let installed = install(place.path());
        let with_module = |arguments: &[&str]| {
            let mut python = Command::new(python());
            python
                .current_dir(place.path())
                .env("PYTHONPATH", &installed);
            python.args(arguments);
            python
        };
        let tests = folder().join("tests/test_store.py");
        run(&mut with_module(&[tests.to_str().unwrap()]));
        let stubs = [
            "-m",
            "mypy.stubtest",
            "--concise",
            "--ignore-missing-stub",
            "--ignore-disjoint-bases",
        ];
        run(with_module(&stubs).arg("pluvio_store"));

        let words = folder().join("examples/words.py");
        let words = [words.to_str().unwrap(), "words"];
        let first = run(&mut with_module(&words));
        assert!(first.contains("the 3\n"), "{first}");
        let second = run(&mut with_module(&words));
        assert!(second.contains("the 6\n"), "{second}");

        let page = folder().join("../../docs/embedded-c-and-python.md");
        let page = std::fs::read_to_string(page).unwrap();
        let blocks = page.split("```python\n").skip(1);
        let code: String = blocks.filter_map(|rest| rest.split("```").next()).collect();
        let said = run(&mut with_module(&["-c", &code]));
        assert_eq!(said, "b'134794'\n6\nversion 1\n");
    }
}
