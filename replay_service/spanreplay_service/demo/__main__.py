"""Entry point of `python -m spanreplay_service.demo`."""

from spanreplay_service.demo.demo import main

if __name__ == "__main__":
    main()
