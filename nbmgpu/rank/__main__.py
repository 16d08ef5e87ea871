"""``python -m nbmgpu.rank <run folder>``: a rank that an engine has started in a new process."""

from .main import main

if __name__ == "__main__":
    main()
