"""What pytest adds to the Python tests: a script whose tests were all skipped ends with 77, which ctest shows as skipped."""


def pytest_sessionfinish(session, exitstatus):
    stats = session.config.pluginmanager.get_plugin("terminalreporter").stats
    if exitstatus == 0 and stats.get("skipped") and not stats.get("passed"):
        session.exitstatus = 77
