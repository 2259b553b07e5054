"""`rehearse list`: every name that it prints is one that a job takes, and its figures are those of the files."""

from cli_test_case import ROOT, CliTestCase

KINDS = ["models", "clusters", "devices", "methods", "software", "failures"]


class List(CliTestCase):
    def test_it_names_what_ships(self):
        known = self.json("list")
        self.assertEqual([key for key in known if isinstance(known[key], list) and key != "command"], KINDS)
        for kind, folder in (("models", "models"), ("clusters", "platforms"), ("software", "software"), ("failures", "faults")):
            files = {path.stem for path in (ROOT / folder).glob("*.toml")} - {"devices"}
            self.assertEqual({one["name"] for one in known[kind]}, files, kind)
        for kind in KINDS[3:]:
            for one in known[kind]:
                self.assertTrue(one["summary"], one["name"])
        said = self.rehearse("list").stdout
        for kind in KINDS:
            (line,) = (line for line in said.splitlines() if line.startswith(f"{kind} ("))
            self.assertTrue(line.endswith(": " + ", ".join(one["name"] for one in known[kind])))

    def test_a_table_of_each_kind(self):
        for kind in KINDS:
            alone = self.json("list", kind)
            lines = self.rehearse("list", kind).stdout.splitlines()
            self.assertEqual(len(lines), 1 + len(alone[kind]))
            for line, one in zip(lines[1:], alone[kind], strict=True):
                self.assertTrue(line.startswith(one["name"]))
        self.refused("list", "modles", says=["WHAT", "models"])

    def test_figures(self):
        models = {one["name"]: one for one in self.json("list", "models")["models"]}
        self.assertEqual(models["gemma3-1b"]["parameters"], 999_885_952)
        self.assertRegex(self.rehearse("list", "models").stdout, r"\ngemma3-1b +llama +999\.9 M +26 +1152 +4 +1 +262144 +32768\n")
        said = self.rehearse("list", "devices").stdout
        self.assertRegex(said, r"\nRTX 4090 +25\.8 GB +1\.01 TB/s .* 0\.69 USD/h")
        self.assertRegex(said, r"\nV100 PCIe 32GB .* -(?: |$)")
        clusters = self.rehearse("list", "clusters").stdout
        self.assertRegex(clusters, r"\ndgx-h100:N +DGX H100")
        self.assertRegex(clusters, r"\npaper +\S")
        self.assertRegex(clusters, r"\ntpu-v4:AxBxC +\S")
