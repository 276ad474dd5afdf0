"""The system's log; where there is none nothing fails."""

import syslog

CALLS = 3


def use():
    syslog.openlog("agent")
    before = syslog.setlogmask(syslog.LOG_UPTO(syslog.LOG_DEBUG))
    syslog.closelog()
    return before
